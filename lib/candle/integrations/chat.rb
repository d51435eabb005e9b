# frozen_string_literal: true

require "securerandom"

module Candle
  # What other libraries of Ruby expect of a language model, on models of this process.
  module Integrations
    # One answer with everything that adapters ask for: text as it comes, calls of tools, a schema, counts of tokens.
    #
    # @api private
    class Chat
      # The answer: what was thought before, its text without the calls of tools in it, those calls each with an id,
      # and the run.
      Answer = Struct.new(:reasoning, :text, :tool_calls, :completion, keyword_init: true)

      # @param llm [LLM]
      # @param tools [Array<Hash>] definitions as OpenAI has them
      # @param tool_choice [Symbol, String]
      # @param schema [Hash, nil] a JSON schema that the answer must follow
      # @param reasoning [Hash] `reasoning:`, `enable_thinking:` and `reasoning_effort:` of {LLM#complete}
      # @param options [Hash] fields of {GenerationConfig}; nil counts as not given
      def initialize(llm, tools: [], tool_choice: :auto, schema: nil, reasoning: {}, **options)
        @llm = llm
        @tools = Tool.all(tools)
        @tool_choice = tool_choice
        @schema = schema
        @reasoning = reasoning
        @config = GenerationConfig.balanced(**options.compact)
      end

      # @param messages [Array<Hash>] as {LLM#chat_with_tools} takes them
      # @yieldparam piece [String] text that is certainly no part of a tool call, as it comes
      # @yieldparam kind [Symbol] `:text` or `:reasoning`
      # @return [Answer]
      def call(messages, &block)
        watch = ToolStream.new(formats, tools: @tools, known: true) if tools?
        completion = complete(messages) do |piece, kind|
          show(watch && kind != :reasoning ? texts(watch.push(piece)) : piece, kind || :text, &block)
        end
        show(texts(watch.finish(completion.text)), :text, &block) if watch
        answer(completion, watch)
      end

      private

      def answer(completion, watch)
        calls = watch ? watch.calls : []
        text = watch.text.empty? ? nil : watch.text if calls.any?
        Answer.new(reasoning: (completion.reasoning if completion.respond_to?(:reasoning)),
                   text: calls.any? ? text : completion.text, tool_calls: calls.map { |call| identified(call) },
                   completion: completion)
      end

      def tools?
        @tools.any? && @tool_choice.to_s != "none"
      end

      def formats
        @llm.respond_to?(:tool_formats) ? @llm.tool_formats : ToolFormats::ALL
      end

      def texts(events)
        events.filter_map { |kind, text| text if kind == :text }.join
      end

      def complete(messages, &block)
        if tools?
          return @llm.complete_with_tools(messages, tools: @tools, tool_choice: @tool_choice, config: @config,
                                                    **@reasoning, &block)
        end

        options = { **@reasoning, schema: @schema }.compact
        @llm.complete(ToolMessages.native(messages), config: @config, **options, &block)
      end

      def show(text, kind)
        yield text, kind if block_given? && !text.to_s.empty?
      end

      def identified(call)
        ToolCall.new(name: call.name, arguments: call.arguments, id: call.id || "call_#{SecureRandom.hex(12)}")
      end
    end
  end
end
