# frozen_string_literal: true

module Candle
  module ActiveRecord
    # Methods of migrations, all of which can be reverted.
    module Migration
      # The operator classes of pgvector's indexes.
      OPERATOR_CLASSES = { cosine: "cosine_ops", euclidean: "l2_ops", inner_product: "ip_ops" }.freeze

      # Adds a column of vectors, that of their digests and, where wanted, that of their signs.
      #
      # @param table [Symbol, String]
      # @param column [Symbol, String]
      # @param dimensions [Integer] of the vectors
      # @param type [Symbol] `:vector` (f32), `:halfvec` (f16), `:int8` (bytes) or `:bit`; SQLite keeps all as blobs
      # @param bits [Boolean] whether to add `<column>_bits`, which finds candidates
      # @return [void]
      def add_embedding(table, column = :embedding, dimensions:, type: :vector, bits: false)
        type = Arguments.choice(type, "type", Codec::TYPES)
        Arguments.count(dimensions, "dimensions")
        add_column(table, column, embedding_column_type(type, dimensions))
        add_column(table, "#{column}_bits", embedding_column_type(:bit, dimensions)) if bits
        add_column(table, "#{column}_digest", :string, limit: 64)
      end

      # Adds an index to a column of vectors or of bits, in PostgreSQL.
      #
      # @param table [Symbol, String]
      # @param column [Symbol, String]
      # @param using [Symbol] `:hnsw`, or `:ivfflat`, which wants the rows to be there
      # @param distance [Symbol] `:cosine`, `:euclidean` or `:inner_product`; a column of bits has `:hamming`
      # @param type [Symbol] of the column: `:vector`, `:halfvec` or `:bit`
      # @param concurrently [Boolean] without locking the table, outside of a transaction
      # @param with [Hash] `m:` and `ef_construction:` of HNSW, `lists:` of IVFFlat
      # @return [void]
      def add_embedding_index(table, column = :embedding, using: :hnsw, distance: :cosine, type: :vector,
                              concurrently: false, **with)
        using = Arguments.choice(using, "using", %i[hnsw ivfflat])
        name = "index_#{table}_on_#{column}_#{using}"
        settings = " WITH (#{with.map { |key, value| "#{key} = #{Integer(value)}" }.join(", ")})" if with.any?
        reversible do |direction|
          direction.up do
            execute("CREATE INDEX #{"CONCURRENTLY " if concurrently}#{quote_column_name(name)} " \
                    "ON #{quote_table_name(table)} " \
                    "USING #{using} (#{quote_column_name(column)} #{operator_class(type, distance)})#{settings}")
          end
          direction.down { execute("DROP INDEX #{quote_column_name(name)}") }
        end
      end

      # Adds the tables in which {Jobs} keep their progress.
      #
      # @return [void]
      def create_candle_jobs_tables
        require "candle/jobs"
        reversible do |direction|
          direction.up { Jobs::Schema.create(connection) }
          direction.down { Jobs::Schema.drop(connection) }
        end
      end

      private

      def embedding_column_type(type, dimensions)
        return :binary if Store.adapter(connection) == :sqlite || type == :int8

        "#{type}(#{dimensions})"
      end

      def operator_class(type, distance)
        return "bit_hamming_ops" if type.to_sym == :bit

        type = Arguments.choice(type, "type", %i[vector halfvec])
        "#{type}_#{OPERATOR_CLASSES.fetch(Arguments.choice(distance, "distance", OPERATOR_CLASSES.keys))}"
      end
    end
  end
end
