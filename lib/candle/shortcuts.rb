# frozen_string_literal: true

require "monitor"

# One-liners on the default models, which are loaded once.
module Candle
  @shortcut_models = {}
  @shortcut_lock = Monitor.new

  class << self
    # @example
    #   Candle.embed("Ruby runs transformers.").size # needs the hub
    #
    # @param text_or_texts [String, Array<String>]
    # @param model [EmbeddingModel, String, nil] another model, or where to load it from; nil is the default
    # @param options [Hash] as {EmbeddingModel#embed} takes them
    # @return [Array<Float>, Array<Array<Float>>] as {EmbeddingModel#embed}
    def embed(text_or_texts, model: nil, **options)
      shortcut_model(EmbeddingModel, model).embed(text_or_texts, **options)
    end

    # @example
    #   Candle.rerank("how many people live in Berlin?", ["Berlin has 3.7 million inhabitants."]) # needs the hub
    #
    # @param query [String]
    # @param documents [Array<String>]
    # @param model [Reranker, String, nil] another model, or where to load it from; nil is the default
    # @param options [Hash] as {Reranker#rerank} takes them
    # @return [Array<Hash>] as {Reranker#rerank}
    def rerank(query, documents, model: nil, **options)
      shortcut_model(Reranker, model).rerank(query, documents, **options)
    end

    # Searches in two stages: vectors find candidates fast, and a reranker, which reads query and document together,
    # puts them in order.
    #
    # @example
    #   found = Candle.search("the lazy dog", ["hello world", "the lazy dog"], top_k: 1, reranker: false,
    #                         embedder: "spec/fixtures/tiny/bert-sentence")
    #   found.first[:text] # => "the lazy dog"
    #
    # @param query [String]
    # @param documents [Array<String>]
    # @param embedder [EmbeddingModel, String, nil] the model of the first stage, or where to load it from; nil is the
    #   default
    # @param reranker [Reranker, String, false, nil] that of the second; false leaves it out
    # @param top_k [Integer] how many to return
    # @param candidates [Integer] how many the first stage finds for the second
    # @return [Array<Hash>] `{index:, score:, text:}`, best first; `index` is the place in `documents`
    # @raise [InvalidInputError] for what isn't a text, naming its index
    def search(query, documents, embedder: nil, reranker: nil, top_k: 10, candidates: [4 * top_k, 50].max)
      documents = Arguments.texts(documents, "documents").first
      return [] if documents.empty?

      found = shortcut_model(EmbeddingModel, embedder).search(query, documents,
                                                              top_k: reranker == false ? top_k : candidates)
      return found if reranker == false

      ranked = shortcut_model(Reranker, reranker).rerank(query, found.map { |hit| hit[:text] }, top_k: top_k)
      ranked.map { |hit| found[hit[:index]].merge(score: hit[:score]) }
    end

    # @example
    #   Candle.chat("What is Ruby?") # needs the hub
    #
    # @param text_or_messages [String, Array<Hash>] what the user says, or a whole conversation
    # @param model [LLM, String, nil] another model, or where to load it from; nil is the default
    # @param options [Hash] as {LLM#chat} takes them
    # @yieldparam piece [String] the answer as it comes
    # @return [String] the answer
    def chat(text_or_messages, model: nil, **options, &block)
      messages = text_or_messages
      messages = [{ role: "user", content: messages }] unless messages.is_a?(Array)
      llm = shortcut_model(LLM, model)
      block ? llm.chat_stream(messages, **options, &block) : llm.chat(messages, **options)
    end

    # A task by the name that transformers and informers give it.
    #
    # @example
    #   ner = Candle.pipeline("ner", "spec/fixtures/tiny/bert-token")
    #   ner.("the dog live in Paris").first.keys # => [:entity_group, :score, :word, :start, :end]
    #
    # @param task [String, Symbol] a key of {Pipeline::TASKS}
    # @param model [Model, String, Pathname, nil] a model, or where to load it from; nil is the default of its class
    # @param options [Hash] as `from_pretrained` of the model's class takes them
    # @return [Pipeline]
    # @raise [ArgumentError] for an unknown task, and for no model where there is no default
    def pipeline(task, model = nil, **options)
      Pipeline.new(task, model, **options)
    end

    private

    # A model as it is given, or the one of that source, loaded once.
    def shortcut_model(klass, model)
      return model if model.is_a?(klass)

      @shortcut_lock.synchronize { @shortcut_models[[klass, model]] ||= klass.from_pretrained(*model) }
    end
  end
end
