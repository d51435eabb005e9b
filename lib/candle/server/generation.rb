# frozen_string_literal: true

module Candle
  class Server
    # One answer of a language model, as every dialect asks for it: what to read, how to sample, what form it must have.
    #
    # @api private
    class Generation
      # What the model made: the run, the calls of tools in it, and the text around them.
      Result = Struct.new(:completion, :text, :tool_calls, keyword_init: true)

      # @param entry [Models::Entry]
      # @param input [String, Array<Hash>] a prompt, or messages for the chat template
      # @param options [Hash] fields of {GenerationConfig}
      # @param tools [Array<Tool>]
      # @param tool_choice [Symbol, String]
      # @param schema [Hash, nil] a JSON schema that the answer must follow
      # @param metrics [Metrics]
      def initialize(entry, input, options:, metrics:, tools: [], tool_choice: :auto, schema: nil)
        @entry = entry
        @input = input
        @options = options
        @tools = tools
        @tool_choice = tool_choice
        @schema = schema
        @metrics = metrics
      end

      # @param seed_offset [Integer] so that further answers to one prompt differ
      # @yieldparam piece [String] text that is certainly no part of a tool call, as it comes
      # @yieldparam tokens [Array<Hash>] with log probabilities, where wanted: those chosen since the last piece
      # @return [Result]
      def run(seed_offset: 0, &block)
        watch = tools? ? ToolStream.new(demanded: demanded?) : nil
        held = []
        completion = generate(seed_offset) do |piece, tokens|
          held.concat(tokens) if tokens
          show(watch ? watch.push(piece) : piece, held, &block)
        end
        calls = tools? ? ToolCallParser.parse(completion.text, available_tools: @tools) : nil
        show(watch.rest, held, &block) if watch && calls.tool_calls.empty?
        count(completion)
        Result.new(completion: completion, tool_calls: calls ? calls.tool_calls : [],
                   text: calls&.has_tool_calls? ? calls.text_response : completion.text)
      end

      # @return [Integer] how many tokens the model is to read
      def prompt_tokens
        return llm.count_tokens(@input, tools: @tools, tool_choice: @tool_choice) if tools?

        llm.count_tokens(prompt)
      end

      private

      def tools?
        @tools.any? && @tool_choice != :none
      end

      def demanded?
        !%i[auto none].include?(@tool_choice)
      end

      def show(text, tokens)
        yield text, tokens.slice!(0..) if block_given? && !text.empty?
      end

      def generate(seed_offset, &block)
        write(seed_offset, &timer(&block))
      rescue ArgumentError => e
        raise Problem.new(400, "invalid_request", e.message)
      end

      def write(seed_offset, &block)
        config = GenerationConfig.new(sampling(seed_offset))
        if tools?
          return llm.complete_with_tools(@input, tools: @tools, tool_choice: @tool_choice, config: config, &block)
        end

        llm.complete(prompt, config: config, **constraint, &block)
      end

      def prompt
        @input.is_a?(Array) ? ToolMessages.native(@input) : @input
      end

      # Prompts without a template go past the eyes of a model that has some.
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
          yield piece, tokens if kind == :text
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
