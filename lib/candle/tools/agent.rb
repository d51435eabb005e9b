# frozen_string_literal: true

module Candle
  # Lets a model call tools until it has an answer. What a tool raises, and calls of tools that do not exist, are told
  # to the model, which may do better.
  #
  # @example
  #   clock = Candle::Tool.new(name: "clock", description: "The time") { Time.now.to_s }
  #   agent = Candle::Agent.new(Candle::LLM.from_pretrained("spec/fixtures/tiny/decoders/llama"), tools: [clock])
  #   agent.max_iterations # => 10
  class Agent
    MAX_ITERATIONS = 10

    # @return [LLM]
    attr_reader :llm
    # @return [Array<Tool>]
    attr_reader :tools
    # @return [String, nil]
    attr_reader :system_prompt
    # @return [Integer]
    attr_reader :max_iterations

    # @param llm [LLM] or what else answers `chat_with_tools`
    # @param tools [Array<Tool>]
    # @param system_prompt [String, nil]
    # @param max_iterations [Integer] how often to ask the model at most
    def initialize(llm, tools:, system_prompt: nil, max_iterations: MAX_ITERATIONS)
      unless max_iterations.is_a?(Integer) && max_iterations.positive?
        raise ArgumentError, "max_iterations must be a positive Integer, not #{max_iterations.inspect}"
      end

      @llm = llm
      @tools = tools
      @system_prompt = system_prompt
      @max_iterations = max_iterations
    end

    # @param message [String, Array<Hash>] what to do, or a conversation that ends with it
    # @param options [Hash] as {LLM#chat} takes them
    # @return [AgentResult]
    # @raise [AgentMaxIterationsError] when there is no answer in time, with the conversation in `messages`
    def run(message, **options)
      messages = opening(message)
      calls = 0
      1.upto(max_iterations) do |iteration|
        result = llm.chat_with_tools(messages, tools: tools, execute: true, **options)
        return finished(result, messages, iteration, calls) unless result.has_tool_calls?

        messages << ToolMessages.assistant(result)
        result.tool_results.each_with_index { |outcome, index| messages << ToolMessages.tool(outcome, index) }
        calls += result.tool_results.size
      end
      raise AgentMaxIterationsError.new("no answer after #{max_iterations} iterations; raise max_iterations:, or see " \
                                        "in #messages what the model is doing", messages: messages)
    end

    # @return [String] one line
    def inspect
      "#<Candle::Agent #{tools.map(&:name).join(", ")}>"
    end

    private

    def opening(message)
      given = message.is_a?(Array) ? message.dup : [{ role: "user", content: TextInput.utf8(message, "message") }]
      system_prompt ? [{ role: "system", content: system_prompt }, *given] : given
    end

    def finished(result, messages, iteration, calls)
      AgentResult.new(response: result.text_response || result.raw_response, messages: messages, iterations: iteration,
                      tool_calls_made: calls)
    end
  end
end
