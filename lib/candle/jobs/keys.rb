# frozen_string_literal: true

module Candle
  module Jobs
    # Records that are in the database: a slice is a list of their primary keys.
    #
    # @api private
    class Keys
      include Corpus

      PAGE = 10_000

      # @return [ActiveRecord::Embedding]
      attr_reader :embedding

      def initialize(relation, column)
        @relation = relation
        @klass = relation.klass
        @embedding = Corpus.embedding(@klass, column)
      end

      # @return [Hash]
      def description
        { kind: "keys", target: @klass.name, column: @embedding.column }
      end

      # @return [Array<String>] some of the texts
      def sample(count)
        @relation.limit(count).filter_map { |record| @embedding.text(record) }
      end

      # @param policy [SlicePolicy]
      # @return [Enumerator] of payloads with how many texts each has
      def slices(policy)
        gather(weighed_keys, policy).lazy.map { |keys| [keys, keys.size] }
      end

      # @param keys [Array] the payload of a slice
      # @return [Array<Slice::Entry>]
      def entries(keys)
        @klass.unscoped.where(@klass.primary_key => keys).select(*@embedding.columns_of_text(@klass)).map do |record|
          Slice::Entry.new(record.id, @embedding.text(record), record[@embedding.digest_column])
        end
      end

      # Locks the rows of entries, and reads them again.
      #
      # @param entries [Array<Slice::Entry>]
      # @return [Array<Slice::Entry>] those with another text than before, which they have now
      def reread(entries)
        rows = table.lock(entries.map(&:key)).to_h { |record| [record.id, record] }
        entries.select do |entry|
          record = rows[entry.key] or next
          entry.stored_digest = record[@embedding.digest_column]
          text = @embedding.text(record)
          digest = @embedding.digest(text)
          next if entry.digest == digest

          entry.text = text
          entry.digest = digest
          entry.vector = entry.error = nil
          true
        end
      end

      # @param entries [Array<Slice::Entry>] whose vectors are made
      # @return [Integer] how many rows changed
      def store(entries)
        table.update(entries.map { |entry| ActiveRecord::Store::Row.new(entry.key, entry.vector, entry.digest) })
      end

      # @yield in a transaction of the database that has the vectors
      # @return [Object]
      def transaction(&block)
        @klass.transaction(&block)
      end

      private

      def table
        ActiveRecord::Store.new(@klass, @embedding)
      end

      # Pages by key, so that neither memory nor a transaction grows with the table.
      def weighed_keys
        Enumerator.new do |keys|
          key = @klass.arel_table[@klass.primary_key]
          pages = @relation.limit_value ? @klass.unscoped.where(key.in(@relation.ids)) : @relation
          last = nil
          loop do
            page = last.nil? ? pages : pages.where(key.gt(last))
            found = page.reorder(key.asc).limit(PAGE).pluck(key, weight)
            found.each { |pair| keys << pair }
            break if found.size < PAGE

            last = found.last.first
          end
        end
      end

      # The characters of the text, where it comes from columns.
      def weight
        columns = @embedding.sources.map(&:to_s)
        return Arel.sql("NULL") unless (columns - @klass.column_names).empty?

        connection = @klass.connection
        table = @klass.quoted_table_name
        lengths = columns.map { |name| "COALESCE(LENGTH(#{table}.#{connection.quote_column_name(name)}), 0)" }
        Arel.sql(lengths.join(" + "))
      end
    end
  end
end
