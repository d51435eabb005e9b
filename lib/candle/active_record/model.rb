# frozen_string_literal: true

module Candle
  module ActiveRecord
    # Class methods of every model of Active Record.
    module Model
      # Keeps a column of vectors current. A digest of text, model and revision beside it says whether it is.
      #
      # Beside the column's own, records get methods named after it: `embedding_current?` and `update_embedding`.
      #
      # @param sources [Array<Symbol>] the attributes or methods whose text is embedded; several are joined
      # @param options [Hash] `model:` an id, a directory or an {EmbeddingModel}; `dimensions:` of the column, where
      #   the vector is to be cut; `column:` (`:embedding`), `digest:` (`:embedding_digest`); `revision:`, `device:` and
      #   `dtype:` of the model; `type:` of the column (`:vector :halfvec :int8 :bit`), which PostgreSQL's columns say
      #   themselves; `bits:` a column of the vector's signs that finds candidates; `prompt:` and `prompt_name:` of
      #   texts, `query_prompt:` and `query_prompt_name:` of queries; `update:` `:now` (with the record), `:later` (by a
      #   job) or `:manual`
      # @return [void]
      # @raise [ArgumentError] for unknown options
      def has_embedding(*sources, **options) # rubocop:disable Naming/PredicateName
        raise ArgumentError, "has_embedding needs model:, an id or a directory" unless options[:model]

        embedding = Embedding.new(sources, **options)
        first = candle_embeddings.empty?
        self.candle_embeddings = candle_embeddings.merge(embedding.column => embedding)
        include(Record) if first
        define_embedding_methods(embedding)
        # The neighbor gem has types of its own for these columns, which its queries rely on.
        attribute(embedding.column, lazy_vector_type(embedding)) unless defined?(::Neighbor)
      end

      # @return [Hash{String => Embedding}] what {#has_embedding} declared, by column
      def candle_embeddings
        @candle_embeddings || (superclass.respond_to?(:candle_embeddings) ? superclass.candle_embeddings : {})
      end

      # @param column [String, Symbol, nil] nil is the only one
      # @return [Embedding] what {#has_embedding} declared for it
      # @raise [ArgumentError] where there is none, or several to choose from
      def candle_embedding(column = nil)
        raise ArgumentError, "#{name} has no has_embedding" if candle_embeddings.empty?
        return candle_embeddings.fetch(column.to_s) { unknown_embedding(column) } if column
        return candle_embeddings.values.first if candle_embeddings.size == 1

        raise ArgumentError, "#{name} has several columns of vectors: name one by column: " \
                             "(#{candle_embeddings.keys.join(", ")})"
      end

      # The records that are nearest to a query, in one statement. Works on relations too:
      # `Article.where(language: "en").nearest("yeast")`.
      #
      # @param query [String, Array<Float>, Tensor, ActiveRecord::Base] a text, a vector, or a record, which is left out
      # @param limit [Integer] how many
      # @param where [Object, nil] a condition, as `where` takes it
      # @param column [Symbol, nil] which of several columns
      # @param distance [Symbol] `:cosine`, `:euclidean`, or in PostgreSQL `:inner_product`
      # @param candidates [Integer, nil] how many a column of bits, or the search before `rerank:`, finds at first
      # @param rerank [Reranker, String, Boolean, nil] a reranker, or where to load it from, that puts candidates in
      #   order; true is the default one
      # @return [ActiveRecord::Relation, Array<ActiveRecord::Base>] nearest first; each answers `neighbor_distance`, and
      #   with `rerank:` `rerank_score`. An Array where Ruby made the order: with `rerank:`, for columns of bits or
      #   signed bytes, and in SQLite without the sqlite-vec extension
      # @raise [ArgumentError] where no column of vectors was declared
      # @raise [Error] in SQLite without the extension, where there are more vectors than {ActiveRecord.scan_limit}
      def nearest(query, limit: 10, where: nil, column: nil, distance: :cosine, candidates: nil, rerank: nil)
        embedding = candle_embedding(column)
        relation = where ? all.where(where) : all
        relation = relation.where.not(primary_key => query[primary_key]) if query.is_a?(::ActiveRecord::Base)
        vector = query_vector(embedding, query)
        return relation.none if vector.nil?

        wanted = rerank ? [candidates || (5 * limit), limit].max : limit
        found = Search.new(relation, embedding, vector, limit: wanted, distance: distance,
                                                        candidates: rerank ? nil : candidates).results
        rerank ? reranked(found, embedding, query, rerank, limit) : found
      end

      # Runs the block with pgvector's settings for searches, in a transaction.
      #
      # @param settings [Hash] `ef_search:` and `iterative_scan:` of HNSW, `probes:` of IVFFlat
      # @return [Object] what the block returns
      def with_search_settings(ef_search: nil, iterative_scan: nil, probes: nil)
        values = { "hnsw.ef_search" => ef_search, "hnsw.iterative_scan" => iterative_scan,
                   "ivfflat.probes" => probes }.compact
        transaction(requires_new: true) do
          values.each { |name, value| connection.execute("SET LOCAL #{name} = #{connection.quote(value.to_s)}") }
          yield
        end
      end

      private

      attr_writer :candle_embeddings

      def unknown_embedding(column)
        raise ArgumentError, "#{name} has no has_embedding with column #{column.inspect}: " \
                             "it has #{candle_embeddings.keys.join(", ")}"
      end

      def query_vector(embedding, query)
        return embedding.query_vector(query) unless query.is_a?(::ActiveRecord::Base)

        value = query.public_send(embedding.column)
        return if value.nil?

        value.is_a?(String) ? embedding.vectors([embedding.text(query)]).first : Codec.pack(value)
      end

      def reranked(found, embedding, query, reranker, limit)
        query = embedding.text(query) if query.is_a?(::ActiveRecord::Base)
        raise ArgumentError, "rerank: needs a query that is a text" unless query.is_a?(String)

        records = found.to_a
        return [] if records.empty?

        with_reranker(reranker) do |model|
          hits = model.rerank(query, records.map { |record| embedding.text(record).to_s }, top_k: limit)
          hits.map { |hit| records[hit[:index]].tap { |record| record.rerank_score = hit[:score] } }
        end
      end

      def with_reranker(reranker, &block)
        return yield(reranker) if reranker.respond_to?(:rerank)

        source = reranker == true ? Reranker::DEFAULT_MODEL_PATH : reranker
        ModelRegistry.shared.use(source, klass: Reranker, &block)
      end

      def define_embedding_methods(embedding)
        column = embedding.column
        include(Module.new do
          define_method(column) { has_attribute?(column) || new_record? ? super() : stored_embedding(embedding) }
          define_method("#{column}_current?") { embedding.current?(self) }
          define_method("update_#{column}") { update_embedding_of(embedding) }
        end)
      end

      # Which column it is shows only with a connection, which a class is declared without.
      def lazy_vector_type(embedding)
        klass = self
        VectorType.build { [embedding.type(klass), Store.adapter(klass.connection)] }
      end
    end
  end
end
