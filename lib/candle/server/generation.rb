# frozen_string_literal: true

module Candle
  class Server
    # One answer of a language model, as every dialect asks for it: what to read, how to sample, what form it must have.
    #
    # @api private
    class Generation
      # What the model made: the run, what it thought, the calls of tools in it, and the text around them.
      Result = Struct.new(:completion, :reasoning, :text, :tool_calls, keyword_init: true)

      # @param entry [Models::Entry]
      # @param input [String, Array<Hash>] a prompt, or messages for the chat template
      # @param options [Hash] fields of {GenerationConfig}
      # @param tools [Array<Tool>]
      # @param tool_choice [Symbol, String]
      # @param schema [Hash, nil] a JSON schema that the answer must follow
      # @param reasoning [Hash] as {LLM#complete} takes it: `reasoning:`, `enable_thinking:`, `reasoning_effort:`
      # @param single [Boolean] whether a second call of a tool does not count
      # @param metrics [Metrics]
      def initialize(entry, input, options:, metrics:, tools: [], tool_choice: :auto, schema: nil, reasoning: {},
                     single: false)
        @entry = entry
        @input = input
        @options = options
        @tools = tools
        @tool_choice = tool_choice
        @schema = schema
        @reasoning = reasoning
        @single = single
        @metrics = metrics
      end

      # @param seed_offset [Integer] so that further answers to one prompt differ
      # @yieldparam kind [Symbol] `:reasoning`, `:text`, `:tool_call` or `:arguments`
      # @yieldparam value [String, Hash] a piece of text, or `{index:, id:, name:}`, `{index:, json:}` of a call
      # @yieldparam tokens [Array<Hash>] with log probabilities, where wanted: those chosen since the last piece
      # @return [Result]
      def run(seed_offset: 0, &block)
        watch = ToolStream.new(formats, tools: @tools, known: true) if tools?
        held = []
        completion = generate(seed_offset) do |piece, kind, tokens|
          held.concat(tokens) if tokens
          events = watch && kind == :text ? watch.push(piece) : [[kind, piece]]
          show(events, held, &block)
        end
        show(watch.finish(completion.text), held, &block) if watch
        count(completion)
        result(completion, watch)
      end

      # @return [Integer] how many tokens the model is to read
      def prompt_tokens
        return llm.count_tokens(@input, tools: @tools, tool_choice: @tool_choice, **wish) if tools?

        llm.count_tokens(prompt, **wish)
      end

      private

      def tools?
        @tools.any? && @tool_choice != :none
      end

      # Models that are more than a text have no form of their own.
      def formats
        llm.respond_to?(:tool_formats) ? llm.tool_formats : ToolFormats::ALL
      end

      # What the template is told of reasoning, for {LLM#count_tokens}.
      def wish
        return {} if @reasoning.empty? || @entry.kind != :llm

        { reasoning: Reasoning.of(@reasoning[:reasoning], **@reasoning.slice(:enable_thinking, :reasoning_effort)) }
      end

      def result(completion, watch)
        calls = watch ? watch.calls : []
        calls = calls.first(1) if @single
        text = watch.text.empty? ? nil : watch.text if calls.any?
        reasoning = completion.reasoning if completion.respond_to?(:reasoning)
        Result.new(completion: completion, tool_calls: calls, reasoning: reasoning,
                   text: calls.any? ? text : completion.text)
      end

      def show(events, tokens)
        return unless block_given?

        events.each do |kind, value|
          next if value.empty? || (@single && value.is_a?(Hash) && value[:index].positive?)

          yield kind, value, tokens.slice!(0..)
        end
      end

      def generate(seed_offset, &block)
        write(seed_offset, &timer(&block))
      rescue ArgumentError => e
        raise Problem.new(400, "invalid_request", e.message)
      end

      def write(seed_offset, &block)
        config = GenerationConfig.new(sampling(seed_offset))
        if tools?
          return llm.complete_with_tools(@input, tools: @tools, tool_choice: @tool_choice, config: config, **adapter,
                                                 **@reasoning, &block)
        end

        llm.complete(prompt, config: config, **adapter, **@reasoning, **constraint, &block)
      end

      # The base model is what calls use that say nothing.
      def adapter
        { adapter: @entry.adapter }.compact
      end

      def prompt
        @input.is_a?(Array) ? ToolMessages.native(@input) : @input
      end

      # Prompts without a template go to the language model alone, past its vision tower.
      def llm
        model = @entry.model
        @entry.kind == :vlm && @input.is_a?(String) ? model.llm : model
      end

      def sampling(seed_offset)
        options = @options.compact
        options[:seed] = options[:seed] + seed_offset if options[:seed]
        options
      end

      def constraint
        @schema ? { schema: @schema } : {}
      end

      # Notes when tokens come.
      def timer
        last = began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        lambda do |piece, kind = :text, tokens = nil|
          now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
          name = last.equal?(began) ? "candle_first_token_seconds" : "candle_between_tokens_seconds"
          @metrics.observe(name, now - last, model: @entry.name)
          last = now
          yield piece, kind, tokens
        end
      end

      def count(completion)
        usage = completion.usage
        @metrics.add("candle_tokens_total", usage.prompt_tokens, model: @entry.name, direction: "in")
        @metrics.add("candle_tokens_total", usage.completion_tokens, model: @entry.name, direction: "out")
      end
    end
  end
end
