# frozen_string_literal: true

require "candle"
require "langchain"
require "candle/integrations/chat"

module Langchain
  module LLM
    # Runs langchainrb's calls on models of this process.
    #
    #     require "candle/integrations/langchain"
    #     llm = Langchain::LLM::RedCandle.new(default_options: { chat_model: "Qwen/Qwen3-0.6B" })
    #     llm.chat(messages: [{ role: "user", content: "Hello" }]).chat_completion
    #     llm.embed(text: "Hello").embedding
    #
    # A model is an id of the hub, a directory or a `.gguf` file, and is loaded once in a process.
    class RedCandle < Base
      # The models that are used when a call names none, and the temperature.
      DEFAULTS = {
        chat_model: Candle::LLM::DEFAULT_MODEL_PATH, completion_model: nil,
        embedding_model: Candle::EmbeddingModel::DEFAULT_MODEL_PATH, temperature: 0.0
      }.freeze

      # What of langchainrb's parameters our sampling has.
      PARAMETERS = { temperature: :temperature, max_tokens: :max_length, top_p: :top_p, top_k: :top_k, seed: :seed,
                     stop: :stop_sequences, stop_sequences: :stop_sequences, presence_penalty: :presence_penalty,
                     frequency_penalty: :frequency_penalty }.freeze
      # What concerns servers, and is the same whatever it says.
      IGNORED = %i[user n stream parallel_tool_calls metadata].freeze
      private_constant :PARAMETERS, :IGNORED

      # @return [Hash] {DEFAULTS} with what was given
      attr_reader :defaults

      # @param device [Candle::Device, String, nil] nil is the best one
      # @param default_options [Hash] instead of {DEFAULTS}
      def initialize(device: nil, default_options: {}) # rubocop:disable Lint/MissingSuper -- Base has no initializer
        @device = device
        @defaults = DEFAULTS.merge(default_options)
      end

      # @return [Integer] how many components the vectors of the default model have
      def default_dimensions
        use(Candle::EmbeddingModel, defaults[:embedding_model], &:dimension)
      end

      # @param text [String, Array<String>]
      # @param model [String]
      # @return [RedCandleResponse] with `embedding` and `embeddings`
      def embed(text:, model: defaults[:embedding_model], **)
        texts = Array(text)
        use(Candle::EmbeddingModel, model) do |embedder|
          RedCandleResponse.new({ embeddings: embedder.embed(texts), created_at: Time.now,
                                  prompt_tokens: texts.sum { |one| embedder.count_tokens(one) } }, model: model)
        end
      end

      # Continues a text.
      #
      # @param prompt [String]
      # @param model [String]
      # @param params [Hash] as {#chat}
      # @yieldparam chunk [RedCandleResponse] each piece of text
      # @return [RedCandleResponse] with `completion`
      def complete(prompt:, model: defaults[:completion_model] || defaults[:chat_model], **params, &block)
        config = Candle::GenerationConfig.balanced(**sampling(params))
        done = use(Candle::LLM, model) do |llm|
          llm.complete(prompt, config: config) do |piece|
            block&.call(RedCandleResponse.new({ completion: piece }, model: model))
          end
        end
        RedCandleResponse.new(facts(done).merge(completion: done.text), model: model)
      end

      # Answers a conversation.
      #
      # @param messages [Array<Hash>] `role` and `content` each, and `tool_calls` and `tool_call_id` as OpenAI has them;
      #   content is a text or a list of parts with texts
      # @param model [String, nil]
      # @param params [Hash] `tools`, `tool_choice`, `response_format`, and `temperature`, `max_tokens`, `top_p`,
      #   `top_k`, `seed`, `stop`, `presence_penalty`, `frequency_penalty`, `reasoning_effort`
      # @yieldparam chunk [RedCandleResponse] each piece of text
      # @return [RedCandleResponse] with `chat_completion` and `tool_calls`
      # @raise [ArgumentError] for other parameters
      def chat(messages:, model: nil, **params, &block)
        model ||= defaults[:chat_model]
        own = params.slice(:tools, :tool_choice, :response_format, :reasoning_effort)
        options = { tools: own[:tools] || [], tool_choice: choice(own[:tool_choice]),
                    reasoning: own.slice(:reasoning_effort).compact, schema: schema(own[:response_format]),
                    **sampling(params.except(*own.keys)) }
        messages = messages.map { |message| plain(message) }
        answer = use(Candle::LLM, model) do |llm|
          Candle::Integrations::Chat.new(llm, **options).call(messages) do |piece, kind|
            block&.call(RedCandleResponse.new({ (kind == :reasoning ? :reasoning : :chat) => piece }, model: model))
          end
        end
        RedCandleResponse.new(facts(answer.completion).merge(chat: answer.text, tool_calls: answer.tool_calls,
                                                             reasoning: answer.reasoning), model: model)
      end

      # @param text [String]
      # @return [RedCandleResponse] with a summary as `completion`
      def summarize(text:)
        answer = chat(messages: [{ role: "user", content: "Write a concise summary of the following:\n\n#{text}" }])
        RedCandleResponse.new(answer.raw_response.merge(completion: answer.chat_completion), model: answer.model)
      end

      private

      def use(klass, source, &block)
        Candle::ModelRegistry.shared.use(source, klass: klass, **{ device: @device }.compact, &block)
      end

      # A message whose content is a text, as templates of models that do not see want it.
      def plain(message)
        content = message[:content] || message["content"]
        text = content.is_a?(Array) ? content.map { |part| text_of(part) }.join : content.to_s
        message.except("content").merge(content: text)
      end

      def text_of(part)
        text = part[:text] || part["text"]
        return text if text

        raise ArgumentError, "red-candle takes parts with texts here, not #{(part[:type] || part["type"]).inspect}"
      end

      def sampling(params)
        given = { temperature: defaults[:temperature] }.merge(params.except(*IGNORED).compact)
        given.to_h do |name, value|
          ours = PARAMETERS.fetch(name) do
            raise ArgumentError, "red-candle takes no #{name}; its parameters are #{PARAMETERS.keys.join(", ")}"
          end
          [ours, ours == :stop_sequences ? Array(value) : value]
        end
      end

      def choice(choice)
        return choice.dig(:function, :name) || choice.dig("function", "name") if choice.is_a?(Hash)

        choice || :auto
      end

      def schema(format)
        return unless format

        format = JSON.parse(JSON.generate(format))
        case format["type"]
        when "json_object" then { "type" => "object" }
        when "json_schema" then format.dig("json_schema", "schema") || format["schema"]
        end
      end

      def facts(completion)
        { created_at: Time.now, prompt_tokens: completion.usage.prompt_tokens,
          completion_tokens: completion.usage.completion_tokens, finish_reason: completion.finish_reason }
      end
    end
  end
end

require "candle/integrations/langchain_response"
require "candle/integrations/langchain_assistant" if Langchain.const_defined?(:Assistant)
