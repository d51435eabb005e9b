# frozen_string_literal: true

module Candle
  module Jobs
    # Texts that are not in the database yet: a slice is a list of attributes, which its worker inserts.
    #
    # @api private
    class Items
      include Corpus

      # Marks an item in a payload that could not be written down, with the reason.
      REFUSED = "refused by Candle::Jobs"

      # @return [ActiveRecord::Embedding]
      attr_reader :embedding

      def initialize(items, klass, unique_by, column)
        @items = items
        @klass = klass
        @embedding = Corpus.embedding(klass, column)
        @unique_by = unique_by&.to_s
      end

      # @return [Hash]
      def description
        { kind: "items", target: @klass.name, column: @embedding.column, unique_by: @unique_by ||= usual_key }
      end

      # @return [Array<String>] some of the texts
      def sample(count)
        peeked.first(count).map { |item| text(sound(item)).to_s }.reject(&:empty?)
      end

      # @param policy [SlicePolicy]
      # @return [Enumerator] of payloads with how many texts each has
      def slices(policy)
        weighed = peeked.lazy.map { |item| sound(item).then { |found| [found, text(found).to_s.length] } }
        gather(weighed, policy).lazy.map { |list| [list, list.size] }
      end

      # @param list [Array<Hash>] the payload of a slice
      # @return [Array<Slice::Entry>]
      def entries(list)
        refused, good = list.partition { |found| found.key?(REFUSED) }
        entries = good.map { |found| entry(found) }.reverse.uniq { |entry| entry.key.to_s }.reverse
        stored = stored_digests(entries.map(&:key))
        entries.each { |entry| entry.stored_digest = stored[entry.key.to_s] }
        entries + refused.map { |found| Slice::Entry.new(found.fetch("key"), nil, nil, nil, nil, nil, found[REFUSED]) }
      end

      # @param _entries [Array<Slice::Entry>]
      # @return [Array<Slice::Entry>] none: these texts are written together with their vectors
      def reread(_entries)
        []
      end

      # @param entries [Array<Slice::Entry>] whose vectors are made
      # @return [Integer] how many rows were written
      def store(entries)
        rows = entries.map { |entry| [with_times(entry.attributes), entry.vector, entry.digest] }
        ActiveRecord::Store.new(@klass, @embedding).upsert(rows, [@unique_by])
      end

      # @yield in a transaction of the database that has the vectors
      # @return [Object]
      def transaction(&block)
        @klass.transaction(&block)
      end

      private

      # What {#sample} looked at is not lost for {#slices}, though an Enumerable may be read only once.
      def peeked
        @peeked ||= @items.is_a?(Array) ? @items : Once.new(@items.each_entry)
      end

      def first_item
        peeked.first(1).first
      end

      def usual_key
        first_item.is_a?(String) ? @embedding.digest_column : @klass.primary_key
      end

      def entry(found)
        text = text(found)
        key = @unique_by == @embedding.digest_column ? @embedding.digest(text) : found.fetch(@unique_by)
        Slice::Entry.new(key, text, nil, found)
      end

      # The attributes, in UTF-8; or, for an invalid text, why it is refused.
      def sound(item)
        attributes(item).transform_values { |value| value.is_a?(String) ? TextInput.utf8(value) : value }
      rescue InvalidInputError => e
        key = item.is_a?(Array) ? item.first : item
        { REFUSED => "#{e.class}: #{e.message}", "key" => key.to_s.scrub("?")[0, 200] }
      end

      # @return [Hash{String => Object}]
      def attributes(item)
        case item
        when String then { source => item }
        when Hash then item.transform_keys(&:to_s)
        when Array then { (@unique_by ||= usual_key) => item.first, source => item.last }
        else raise ArgumentError, "an item must be a String, a pair of key and text, or a Hash, not a #{item.class}"
        end
      end

      def source
        @embedding.sources.first.to_s
      end

      # As {ActiveRecord::Embedding#text} makes it of a record.
      def text(found)
        @embedding.text(@klass.new(found.slice(*@klass.column_names)))
      end

      def stored_digests(keys)
        rows = @klass.unscoped.where(@unique_by => keys).pluck(@unique_by, @embedding.digest_column)
        rows.to_h.transform_keys(&:to_s)
      end

      def with_times(attributes)
        missing = %w[created_at updated_at].select { |name| @klass.column_names.include?(name) } - attributes.keys
        attributes.merge(missing.to_h { |name| [name, Time.now.utc] })
      end

      # Reads an Enumerator on from where it was looked at.
      class Once
        include Enumerable

        def initialize(enumerator)
          @enumerator = enumerator
          @ahead = []
        end

        # @param count [Integer]
        # @return [Array] the next ones, which stay to be read
        def first(count)
          @ahead << @enumerator.next while @ahead.size < count
          @ahead.first(count)
        rescue StopIteration
          @ahead.first(count)
        end

        # @yieldparam item [Object]
        # @return [void]
        def each
          yield @ahead.shift until @ahead.empty?
          loop { yield @enumerator.next }
        end
      end
      private_constant :Once
    end
  end
end
