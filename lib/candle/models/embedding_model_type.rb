# frozen_string_literal: true

module Candle
  # Names of embedding models by their kind, as {EmbeddingModel#model_type} answers them. Loading needs none of them:
  # the kind comes from the checkpoint.
  module EmbeddingModelType
    # Jina embeddings v2: BERT with ALiBi.
    JINA_BERT = "jina_bert"
    # BERT and what has its shape.
    STANDARD_BERT = "standard_bert"
    # MiniLM, which is a small BERT.
    MINILM = "minilm"
    # DistilBERT.
    DISTILBERT = "distilbert"
    # ModernBERT.
    MODERNBERT = "modernbert"

    FAMILIES = { "bert" => STANDARD_BERT, "jina-bert" => JINA_BERT, "jina_bert" => JINA_BERT }.freeze
    private_constant :FAMILIES

    class << self
      # @return [Array<String>] all names
      def all
        [JINA_BERT, STANDARD_BERT, DISTILBERT, MINILM, MODERNBERT]
      end

      # @return [Hash{String => String}] a model of each kind
      def suggested_model_paths
        {
          JINA_BERT => "jinaai/jina-embeddings-v2-base-en",
          STANDARD_BERT => "BAAI/bge-small-en-v1.5",
          MINILM => "sentence-transformers/all-MiniLM-L6-v2",
          DISTILBERT => "sentence-transformers/msmarco-distilbert-base-v4",
          MODERNBERT => "nomic-ai/modernbert-embed-base"
        }
      end

      # @param family [String] as {Model#model_info} has it
      # @return [String] the name of its kind; families without one keep their own
      def of(family)
        FAMILIES.fetch(family, family)
      end
    end
  end
end
