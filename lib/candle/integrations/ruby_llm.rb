# frozen_string_literal: true

require "candle"
require "ruby_llm"
require "candle/integrations/chat"

module Candle
  module Integrations
    # Runs RubyLLM's chats and embeddings in this process: requiring this file registers the provider `:red_candle`.
    #
    #     require "candle/integrations/ruby_llm"
    #     chat = RubyLLM.chat(model: "Qwen/Qwen3-0.6B", provider: :red_candle)
    #     chat.with_tool(Weather).ask("Do I need an umbrella in Berlin?") { |chunk| print chunk.content }
    #     chat.with_thinking(effort: :low).ask("How many r are in strawberry?").thinking.text
    #     RubyLLM.embed("Hello", model: "BAAI/bge-small-en-v1.5", provider: :red_candle).vectors
    #
    # A model is an id of the hub, a directory or a `.gguf` file, and is loaded once in a process.
    # `config.red_candle_device` chooses the device.
    class RubyLLM < ::RubyLLM::Provider
      # What of RubyLLM's `params` our sampling has, by RubyLLM's names and by ours.
      PARAMETERS = { max_tokens: :max_length, max_completion_tokens: :max_length, max_length: :max_length,
                     stop: :stop_sequences, stop_sequences: :stop_sequences, seed: :seed, top_p: :top_p, top_k: :top_k,
                     min_p: :min_p, presence_penalty: :presence_penalty, frequency_penalty: :frequency_penalty,
                     repetition_penalty: :repetition_penalty }.freeze
      # What RubyLLM calls the ends of answers.
      FINISH = Hash.new(:stop).merge(length: :max_tokens).freeze
      private_constant :PARAMETERS, :FINISH

      class << self
        # @return [String] what RubyLLM calls the provider in messages
        def name
          "RedCandle"
        end

        # @return [String] what users call it
        def slug
          "red_candle"
        end

        # @return [Boolean] true: RubyLLM then takes any model as existing
        def local?
          true
        end

        # @return [Array<Symbol>] what RubyLLM's configuration must have: nothing
        def configuration_requirements
          []
        end

        # @return [Array<Symbol>] what it may have
        def configuration_options
          [:red_candle_device]
        end
      end

      # @return [nil] there is no server
      def api_base
        nil
      end

      # Answers a conversation.
      #
      # @param messages [Array<::RubyLLM::Message>]
      # @param tools [Hash{Symbol => ::RubyLLM::Tool}, Array, nil]
      # @param temperature [Float, nil]
      # @param model [::RubyLLM::Model::Info, String]
      # @param params [Hash] `max_tokens`, `stop`, `seed`, `top_p` and what else {GenerationConfig} has; later versions
      #   of RubyLLM call them `provider_options`
      # @param max_output_tokens [Integer, nil]
      # @param thinking [#effort, nil] how much to think: an `effort`, or a `budget` of tokens
      # @param schema [Hash, nil] a JSON schema that the answer must follow
      # @param tool_prefs [Hash, nil] `choice:` is `:auto`, `:required`, `:none` or the name of a tool
      # @param _options [Hash] what concerns servers only
      # @yieldparam chunk [::RubyLLM::Chunk]
      # @return [::RubyLLM::Message]
      # @raise [ArgumentError] for `params` that no model of ours has
      def complete(messages, tools:, temperature:, model:, params: {}, provider_options: {}, max_output_tokens: nil,
                   schema: nil, thinking: nil, tool_prefs: nil, **_options, &block)
        id = id_of(model)
        options = { tools: definitions(tools), tool_choice: choice(tool_prefs), schema: plain_schema(schema),
                    temperature: temperature, reasoning: reasoning(thinking), max_length: max_output_tokens,
                    **sampling(params.to_h.merge(provider_options.to_h)) }
        messages = messages.map { |message| plain_message(message) }
        answer = use(LLM, id) do |llm|
          Chat.new(llm, **options).call(messages) { |piece, kind| block&.call(chunk(piece, kind, id)) }
        end
        message_of(answer, id)
      end

      # @param text [String, Array<String>]
      # @param model [String, ::RubyLLM::Model::Info]
      # @param dimensions [Integer, nil]
      # @param _options [Hash] what concerns servers only
      # @return [::RubyLLM::Embedding]
      def embed(text, model:, dimensions: nil, **_options)
        id = id_of(model)
        use(EmbeddingModel, id) do |embedder|
          tokens = Array(text).sum { |one| embedder.count_tokens(one) }
          vectors = embedder.embed(text, dimensions: dimensions)
          ::RubyLLM::Embedding.new(vectors: vectors, model: id, input_tokens: tokens)
        end
      end

      # @param messages [Array<::RubyLLM::Message>]
      # @param model [::RubyLLM::Model::Info, String]
      # @param tools [Hash{Symbol => ::RubyLLM::Tool}, Array, nil]
      # @param tool_prefs [Hash, nil]
      # @param _options [Hash] what changes no prompt
      # @return [Integer] how many tokens {#complete} would read
      def count_tokens(messages, model:, tools: {}, tool_prefs: nil, **_options)
        messages = messages.map { |message| plain_message(message) }
        use(LLM, id_of(model)) do |llm|
          llm.count_tokens(messages, tools: definitions(tools), tool_choice: choice(tool_prefs))
        end
      end

      # What later versions of RubyLLM do with a message before it is sent: there is nobody to upload its files to.
      #
      # @param message [::RubyLLM::Message]
      # @param _options [Hash]
      # @return [::RubyLLM::Message] the same
      def preprocess_message(message, **_options)
        message
      end

      # @return [Array] nothing: any model of the hub may be named
      def list_models
        []
      end

      private

      def id_of(model)
        model.respond_to?(:id) ? model.id : model.to_s
      end

      def use(klass, id, &block)
        device = @config.red_candle_device if @config.respond_to?(:red_candle_device)
        ModelRegistry.shared.use(id, klass: klass, **{ device: device }.compact, &block)
      end

      def sampling(params)
        params.to_h.to_h do |name, value|
          ours = PARAMETERS.fetch(name.to_sym) do
            raise ArgumentError, "red_candle takes no #{name}; its params are #{PARAMETERS.keys.join(", ")}"
          end
          [ours, ours == :stop_sequences ? Array(value) : value]
        end
      end

      # RubyLLM asks by an effort, of which "none" is not to think, or by a budget of tokens.
      def reasoning(thinking)
        return {} unless thinking

        effort = thinking.effort&.to_s if thinking.respond_to?(:effort)
        budget = thinking.budget if thinking.respond_to?(:budget)
        return { reasoning: false } if effort == "none"

        { reasoning: budget ? { budget: budget } : nil, reasoning_effort: effort }.compact
      end

      def chunk(piece, kind, id)
        more = kind == :reasoning ? { content: nil, thinking: thought(piece) } : { content: piece }
        ::RubyLLM::Chunk.new(role: :assistant, model_id: id, model: id, **more)
      end

      # @return [Object, nil] nil for none, and for versions of RubyLLM that do not know it
      def thought(text)
        ::RubyLLM::Thinking.build(text: text) if text && ::RubyLLM.const_defined?(:Thinking)
      end

      def choice(preferences)
        preferences&.fetch(:choice, nil) || :auto
      end

      # RubyLLM passes a bare JSON schema, or one with a name.
      def plain_schema(schema)
        schema = schema.to_h if schema && !schema.is_a?(Hash)
        schema && (schema[:schema] || schema["schema"] || schema).except("strict", :strict)
      end

      def definitions(tools)
        list = tools.respond_to?(:values) ? tools.values : Array(tools)
        list.map { |tool| { name: tool.name.to_s, description: tool.description.to_s, parameters: parameters(tool) } }
      end

      def parameters(tool)
        # RubyLLM has renamed it.
        name = %i[parameters_schema params_schema].find { |candidate| tool.respond_to?(candidate) }
        given = tool.public_send(name) if name
        # A word for servers among the keywords of the schema; ours follow every schema.
        return given.except("strict", :strict) if given

        known = tool.parameters.transform_keys(&:to_s)
        { "type" => "object", "properties" => known.transform_values { |parameter| property(parameter) },
          "required" => known.select { |_, parameter| parameter.required }.keys }
      end

      def property(parameter)
        { "type" => parameter.type.to_s, "description" => parameter.description }.compact
      end

      def plain_message(message)
        attached = message.attachments if message.respond_to?(:attachments)
        raise text_only unless attached.nil? || attached.empty?

        { role: message.role.to_s, content: text_of(message.content), tool_calls: calls_of(message),
          tool_call_id: message.tool_call_id, reasoning_content: thought_of(message) }.compact
      end

      # What the model thought before; its template decides whether it is told again.
      def thought_of(message)
        return unless message.role.to_s == "assistant" && message.respond_to?(:thinking)

        message.thinking&.text
      end

      # A String, or what holds one beside attachments.
      def text_of(content)
        return content.to_s unless content.respond_to?(:attachments)

        raise text_only unless Array(content.attachments).empty?

        content.text.to_s
      end

      def text_only
        ::Candle::InvalidInputError.new("red_candle's chats take text only, but a message has attachments")
      end

      def calls_of(message)
        calls = message.tool_calls
        return if calls.nil? || calls.empty?

        calls.values.map do |call|
          { id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }
        end
      end

      def message_of(answer, id)
        calls = answer.tool_calls.to_h do |call|
          [call.id, ::RubyLLM::ToolCall.new(id: call.id, name: call.name, arguments: call.arguments)]
        end
        usage = answer.completion.usage
        ::RubyLLM::Message.new(role: :assistant, content: answer.text.to_s, tool_calls: calls.empty? ? nil : calls,
                               model_id: id, model: id, input_tokens: usage.prompt_tokens,
                               output_tokens: usage.completion_tokens, cached_tokens: usage.cached_tokens.to_i,
                               cache_read_tokens: usage.cached_tokens.to_i, thinking: thought(answer.reasoning),
                               thinking_tokens: answer.reasoning && answer.completion.reasoning_tokens,
                               finish_reason: calls.any? ? :tool_calls : FINISH[answer.completion.finish_reason])
      end
    end
  end
end

RubyLLM::Provider.register(:red_candle, Candle::Integrations::RubyLLM)
