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
    # @param options [Hash] as {EmbeddingModel#embed} takes them
    # @return [Array<Float>, Array<Array<Float>>] as {EmbeddingModel#embed}
    def embed(text_or_texts, **options)
      default_model(EmbeddingModel).embed(text_or_texts, **options)
    end

    # @example
    #   Candle.rerank("how many people live in Berlin?", ["Berlin has 3.7 million inhabitants."]) # needs the hub
    #
    # @param query [String]
    # @param documents [Array<String>]
    # @param options [Hash] as {Reranker#rerank} takes them
    # @return [Array<Hash>] as {Reranker#rerank}
    def rerank(query, documents, **options)
      default_model(Reranker).rerank(query, documents, **options)
    end

    # @example
    #   Candle.chat("What is Ruby?") # needs the hub
    #
    # @param text_or_messages [String, Array<Hash>] what the user says, or a whole conversation
    # @param options [Hash] as {LLM#chat} takes them
    # @yieldparam piece [String] the answer as it comes
    # @return [String] the answer
    def chat(text_or_messages, **options, &block)
      messages = text_or_messages
      messages = [{ role: "user", content: messages }] unless messages.is_a?(Array)
      llm = default_model(LLM)
      block ? llm.chat_stream(messages, **options, &block) : llm.chat(messages, **options)
    end

    private

    def default_model(klass)
      @shortcut_lock.synchronize { @shortcut_models[klass] ||= klass.from_pretrained }
    end
  end
end
