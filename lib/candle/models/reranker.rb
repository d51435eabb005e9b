# frozen_string_literal: true

Candle::Native.complete(:Reranker)

module Candle
  # How well documents answer a query, by a model that reads both together: an encoder or a decoder with a
  # classification head of one output, or a language model that answers yes or no (Qwen3-Reranker).
  #
  # @example
  #   reranker = Candle::Reranker.from_pretrained("spec/fixtures/tiny/bert-reranker")
  #   best = reranker.rerank("what is the capital?", ["the lazy dog", "paris is the capital"]).first
  #   best.slice(:index, :text) # => {:index=>1, :text=>"paris is the capital"}
  class Reranker
    include Model
    include Statistics

    # The model that is loaded when none is named.
    DEFAULT_MODEL_PATH = "cross-encoder/ms-marco-MiniLM-L-12-v2"

    class << self
      # @param source [String, Pathname] a Hugging Face id or a directory
      # @param positional_device [Device, String, nil] the same as `device:`
      # @param device [Device, String, Symbol, nil] nil is the best one
      # @param dtype [Symbol, nil] `:f32`, `:f16`, `:bf16`, or on the CPU `:int8`; nil is f32 on the CPU and the
      #   checkpoint's on a GPU
      # @param tokenizer [Tokenizer, String, nil] instead of the model's own
      # @param revision [String, nil] a branch, tag or commit of the hub
      # @param max_length [Integer] how many tokens of query and document are read, at most what the model takes
      # @param token [String, nil] for private and gated models, before `HF_TOKEN`
      # @param cache_dir [String, Pathname, nil] where downloaded models are kept, before `HF_HUB_CACHE`
      # @param verify [Boolean, nil] whether to compare the device with the CPU first; nil does so on GPUs
      # @return [Reranker]
      # @raise [ModelNotFoundError, DownloadError, OfflineError] when it can't be found or fetched
      # @raise [CorruptModelError, UnsupportedModelError] when it can't be read, with the reason
      def from_pretrained(source = DEFAULT_MODEL_PATH, positional_device = nil, device: nil, dtype: nil, tokenizer: nil,
                          revision: nil, max_length: 512, verify: nil, token: nil, cache_dir: nil, **unknown)
        refuse(unknown)
        load_model(source, device: device || positional_device, dtype: dtype, tokenizer: tokenizer, revision: revision,
                           max_length: Arguments.count(max_length, "max_length"), verify: verify, token: token,
                           cache_dir: cache_dir)
      end
    end

    # Scores every document and sorts them. Where query and document are too long together, the document is cut.
    #
    # @param query [String]
    # @param documents [Array<String>]
    # @param pooling_method [String, Symbol] `"pooler"`, what the model was trained with; `"cls"` or `"mean"`
    # @param apply_sigmoid [Boolean] whether scores lie between 0 and 1 instead of being raw logits
    # @param top_k [Integer, nil] how many to return; nil is all
    # @param batch_tokens [Integer, nil] how many tokens are computed at once
    # @return [Array<Hash>] `{doc_id:, score:, text:, index:}`, best first; `doc_id` and `index` are both the place in
    #   `documents`
    # @raise [InvalidInputError] for what isn't a text, naming its index, and for an unknown pooling method
    def rerank(query, documents, pooling_method: "pooler", apply_sigmoid: true, top_k: nil, batch_tokens: nil)
      top_k = Arguments.count(top_k, "top_k")
      documents = Arguments.list(documents)
      scores = logits(query, documents, pooling_method, batch_tokens)
      scores = scores.map { |score| 1.0 / (1.0 + Math.exp(-score)) } if apply_sigmoid
      order = scores.each_index.sort_by { |index| [-scores[index], index] }
      order.first(top_k || order.size).map do |index|
        { doc_id: index, score: scores[index], text: documents[index], index: index }
      end
    end

    # @param query [String]
    # @param documents [Array<String>]
    # @param pooling_method [String, Symbol] `"pooler"`, `"cls"` or `"mean"`
    # @return [Array<Hash>] as {#rerank}, with raw logits
    def rerank_with_pooling(query, documents, pooling_method)
      rerank(query, documents, pooling_method: pooling_method, apply_sigmoid: false)
    end

    # @param query [String]
    # @param documents [Array<String>]
    # @param pooling_method [String, Symbol] `"pooler"`, `"cls"` or `"mean"`
    # @return [Array<Hash>] as {#rerank}, with scores between 0 and 1
    def rerank_sigmoid_with_pooling(query, documents, pooling_method)
      rerank(query, documents, pooling_method: pooling_method, apply_sigmoid: true)
    end

    # @param query [String]
    # @param documents [Array<String>]
    # @param pooling_method [String, Symbol] `"pooler"`, `"cls"` or `"mean"`
    # @param apply_sigmoid [Boolean]
    # @return [Array<Array>] `[text, score, index]` each, best first
    def rerank_with_options(query, documents, pooling_method = "pooler", apply_sigmoid = true) # rubocop:disable Style/OptionalBooleanParameter
      Deprecation.warn("Reranker#rerank_with_options", "rerank(query, documents, pooling_method:, apply_sigmoid:)")
      rerank(query, documents, pooling_method: pooling_method, apply_sigmoid: apply_sigmoid)
        .map { |found| found.values_at(:text, :score, :doc_id) }
    end

    # @param query [String]
    # @param documents [Array<String>]
    # @param batch_tokens [Integer, nil] how many tokens are computed at once
    # @return [Array<Float>] raw logits in the order of the documents
    def score(query, documents, batch_tokens: nil)
      logits(query, documents, "pooler", batch_tokens)
    end

    # What the model reads for a query and a document.
    #
    # @param query [String]
    # @param document [String]
    # @return [Hash{String => Array}] `"token_ids"`, `"token_type_ids"`, `"attention_mask"` and `"tokens"`
    def debug_tokenization(query, document)
      ids, types = _tokens(TextInput.utf8(query, "query"), TextInput.utf8(document, "document"))
      {
        "token_ids" => ids, "token_type_ids" => types, "attention_mask" => Array.new(ids.size, 1),
        "tokens" => ids.map { |id| tokenizer.id_to_token(id) }
      }
    end

    # @return [Integer] how many tokens of query and document are read together
    def max_length
      model_info.fetch(:max_length)
    end

    private

    def smoke_test
      score("a", ["a"])
    end

    def logits(query, documents, pooling, batch_tokens)
      settings = { pooling: TextInput.utf8(Symbol === pooling ? pooling.to_s : pooling, "pooling_method"),
                   batch_tokens: Arguments.count(batch_tokens, "batch_tokens") }.compact
      _score(TextInput.utf8(query, "query"), TextInput.utf8_all(documents, "documents"), settings)
    end
  end
end
