# frozen_string_literal: true

module Candle
  module ActiveRecord
    # Instance methods of models with {Model#has_embedding}.
    module Record
      # @return [Float, nil] what a reranker gave the record in {Model#nearest}
      attr_accessor :rerank_score

      # Adds the callbacks.
      def self.included(base)
        base.after_save { update_embeddings }
        base.after_commit(on: %i[create update]) { enqueue_embeddings }
      end

      private

      def update_embeddings
        self.class.candle_embeddings.each_value do |embedding|
          update_embedding_of(embedding) if embedding.update == :now && affected_embedding?(embedding)
        end
      end

      def enqueue_embeddings
        return unless self.class.candle_embeddings.each_value.any? do |embedding|
          embedding.update == :later && affected_embedding?(embedding)
        end

        require "candle/jobs"
        Jobs.embed_record(self)
      end

      # Whether the vector may be another now: a part of the text was just written, or the object says so. What an
      # object says of a row may be older than the row.
      def affected_embedding?(embedding)
        embedding.sources.any? { |source| saved_changes.key?(source.to_s) } ||
          (embedding.readable?(self) && !embedding.current?(self))
      end

      # Makes the vector of the text that the row has, which another object or process may have changed since this
      # object was loaded.
      #
      # @return [Boolean] whether there was something to do
      def update_embedding_of(embedding)
        store = Store.new(self.class, embedding)
        self.class.transaction do
          row = store.lock([id]).first or next false
          text = embedding.text(row)
          digest = embedding.digest(text)
          current = row[embedding.digest_column] == digest
          vector = embedding.vectors([text]).first if text && !current
          store.update([Store::Row.new(id, vector, digest)]) unless current
          remember_embedding(embedding, digest) { current ? store.read(id) : vector && shown(embedding, vector) }
          !current
        end
      end

      # @yieldreturn [Array<Numeric>, String, nil] the vector as the column gives it back
      def remember_embedding(embedding, digest)
        return if has_attribute?(embedding.digest_column) && self[embedding.digest_column] == digest

        kept = [embedding.digest_column, embedding.column].select { |name| has_attribute?(name) }
        kept.each { |name| self[name] = name == embedding.column ? yield : digest }
        clear_attribute_changes(kept)
      end

      # The vector as the column will give it back.
      def shown(embedding, vector)
        kind = embedding.type(self.class)
        Codec.decode(Codec.encode(vector, kind, :postgresql), kind, :postgresql)
      end

      def stored_embedding(embedding)
        Store.new(self.class, embedding).read(id)
      end
    end
  end
end
