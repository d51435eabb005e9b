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
          update_embedding_of(embedding) if embedding.update == :now && stale_embedding?(embedding)
        end
      end

      def enqueue_embeddings
        return unless self.class.candle_embeddings.each_value.any? do |embedding|
          embedding.update == :later && stale_embedding?(embedding)
        end

        require "candle/jobs"
        Jobs.embed_record(self)
      end

      def stale_embedding?(embedding)
        embedding.readable?(self) && !embedding.current?(self)
      end

      # @return [Boolean] whether there was something to do
      def update_embedding_of(embedding)
        text = embedding.text(self)
        digest = embedding.digest(text)
        return false if self[embedding.digest_column] == digest

        vector = embedding.vectors([text]).first if text
        row = Store::Row.new(id, vector, digest, stored_digest(embedding))
        Store.new(self.class, embedding).update([row])
        remember_embedding(embedding, vector, digest)
        true
      end

      # What the row has now, where the record says otherwise without having been saved.
      def stored_digest(embedding)
        attribute_in_database(embedding.digest_column)
      end

      def remember_embedding(embedding, vector, digest)
        kept = { embedding.digest_column => digest, embedding.column => vector && shown(embedding, vector) }
        kept = kept.select { |name, _| has_attribute?(name) }
        kept.each { |name, value| self[name] = value }
        clear_attribute_changes(kept.keys)
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
