# frozen_string_literal: true

module Candle
  module ActiveRecord
    # Writes vectors into a table, many in one statement, as bytes that are bound to it.
    #
    # A vector is written under the lock of its row, after the text was read again under that lock ({#lock}), so that
    # the digest is always that of the text it stands beside.
    #
    # @api private
    class Store
      # One vector to be written. A nil vector empties the columns.
      Row = Struct.new(:key, :vector, :digest)

      # A statement has at most so many rows: databases limit what is bound to one.
      ROWS = 500

      class << self
        # @param connection [ActiveRecord::ConnectionAdapters::AbstractAdapter]
        # @return [Symbol] `:postgresql` or `:sqlite`
        # @raise [Error] for another database
        def adapter(connection)
          case connection.adapter_name
          when /postg/i then :postgresql
          when /sqlite/i then :sqlite
          else
            raise Error, "vectors can be kept in PostgreSQL with pgvector and in SQLite, " \
                         "not in #{connection.adapter_name}"
          end
        end
      end

      # @param klass [Class] a model of Active Record
      # @param embedding [Embedding]
      def initialize(klass, embedding)
        @klass = klass
        @embedding = embedding
        @type = embedding.type(klass)
        @adapter = self.class.adapter(klass.connection)
        return unless @adapter == :sqlite && @type == :halfvec

        raise ArgumentError, "SQLite has no half-precision vectors: use type: :vector, or :int8"
      end

      # Locks rows until the transaction ends, and reads what their texts come from. Needs a transaction.
      #
      # @param keys [Array<Object>] primary keys
      # @return [Array<ActiveRecord::Base>] without their vectors
      def lock(keys)
        rows = @klass.unscoped.where(@klass.primary_key => keys)
        # SQLite has no locks of rows; a write locks the whole database.
        rows.update_all("#{digest} = #{digest}") if adapter == :sqlite
        rows.select(*@embedding.columns_of_text(@klass)).reorder(@klass.primary_key).lock.to_a
      end

      # @param rows [Array<Row>] of rows that {#lock} has locked
      # @return [Integer] how many rows were changed
      def update(rows)
        rows.each_slice(ROWS).sum do |slice|
          @klass.connection.exec_update(update_statement(slice.size), "#{@klass.name} Embed", update_binds(slice))
        end
      end

      # Inserts rows with their vectors; one that is there already is brought up to date, unless its digest says that
      # it is.
      #
      # @param rows [Array<Array(Hash, String, String)>] attributes by column name, packed vector, digest
      # @param unique_by [Array<String>] columns of a unique index
      # @return [Integer] how many rows were written
      def upsert(rows, unique_by)
        rows.group_by { |attributes, _, _| attributes.keys.sort }.sum do |names, alike|
          alike.each_slice(ROWS).sum do |slice|
            sql = upsert_statement(names, slice.size, unique_by)
            @klass.connection.exec_update(sql, "#{@klass.name} Embed", upsert_binds(names, slice))
          end
        end
      end

      # @param key [Object] a primary key
      # @return [Array<Numeric>, String, nil] the vector of that row
      def read(key)
        digits = @klass.unscoped.where(@klass.primary_key => key).pick(Arel.sql(hexadecimal_column))
        digits && Codec.decode([digits].pack("H*"), type, adapter) unless digits == ""
      end

      private

      attr_reader :adapter, :type

      def hexadecimal_column
        column = quoted(@embedding.column)
        return "hex(#{column})" if adapter == :sqlite

        type == :int8 ? "encode(#{column}, 'hex')" : "encode(#{Codec::SENDERS.fetch(type)}(#{column}), 'hex')"
      end

      # The columns of vector, digest and, where there are any, signs.
      def columns
        [@embedding.column, @embedding.digest_column, *@embedding.bits]
      end

      def update_statement(count)
        key = quoted(@klass.primary_key)
        assignments = columns.map { |column| "#{quoted(column)} = fresh.#{quoted(column)}" }.join(", ")
        names = ["fresh_key", *columns.map { |column| quoted(column) }].join(", ")
        table = @klass.quoted_table_name
        "WITH fresh (#{names}) AS (VALUES #{values(count, update_casts)}) " \
          "UPDATE #{table} SET #{assignments} FROM fresh WHERE #{table}.#{key} = fresh.fresh_key"
      end

      def update_binds(rows)
        key_type = @klass.type_for_attribute(@klass.primary_key)
        rows.flat_map { |row| [bind("key", row.key, key_type), *vector_binds(row.vector, row.digest)] }
      end

      def upsert_statement(names, count, unique_by)
        all = names + columns
        conflict = unique_by.map { |name| quoted(name) }.join(", ")
        assignments = (all - unique_by).map { |name| "#{quoted(name)} = excluded.#{quoted(name)}" }
        assignments << "#{quoted(unique_by.first)} = excluded.#{quoted(unique_by.first)}" if assignments.empty?
        "INSERT INTO #{@klass.quoted_table_name} (#{all.map { |name| quoted(name) }.join(", ")}) " \
          "VALUES #{values(count, Array.new(all.size))} ON CONFLICT (#{conflict}) " \
          "DO UPDATE SET #{assignments.join(", ")} " \
          "WHERE #{adapter == :postgresql ? "" : "NOT "}(#{@klass.quoted_table_name}.#{digest} " \
          "#{adapter == :postgresql ? "IS DISTINCT FROM" : "IS"} excluded.#{digest})"
      end

      def upsert_binds(names, rows)
        rows.flat_map do |attributes, vector, digest|
          own = names.map { |name| bind(name, attributes.fetch(name), @klass.type_for_attribute(name)) }
          own + vector_binds(vector, digest)
        end
      end

      # PostgreSQL can't tell types of a VALUES list by what it is compared with later.
      def update_casts
        return Array.new(columns.size + 1) if adapter == :sqlite

        table = @klass.columns_hash
        [@klass.primary_key, *columns].map { |name| "::#{table.fetch(name).sql_type}" }
      end

      def values(count, casts)
        number = 0
        rows = Array.new(count) do
          "(#{casts.map { |cast| "#{adapter == :postgresql ? "$#{number += 1}" : "?"}#{cast}" }.join(", ")})"
        end
        rows.join(", ")
      end

      def vector_binds(vector, digest)
        bits = @embedding.bits
        [bytes(@embedding.column, vector, type), bind(@embedding.digest_column, digest),
         *(bits && [bytes(bits, vector, :bit)])]
      end

      def bytes(name, vector, kind)
        data = vector && ::ActiveModel::Type::Binary::Data.new(Codec.encode(vector, kind, adapter))
        bind(name, data)
      end

      def bind(name, value, type = ::ActiveModel::Type::Value.new)
        ::ActiveRecord::Relation::QueryAttribute.new(name, value, type)
      end

      def digest
        quoted(@embedding.digest_column)
      end

      def quoted(name)
        @klass.connection.quote_column_name(name)
      end
    end
  end
end
