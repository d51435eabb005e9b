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
    # @param tools [Array<Tool>] each with a block to call
    # @param system_prompt [String, nil]
    # @param max_iterations [Integer] how often to ask the model at most
    # @raise [ArgumentError] for what isn't a tool, or a tool without a block
    def initialize(llm, tools:, system_prompt: nil, max_iterations: MAX_ITERATIONS)
      unless max_iterations.is_a?(Integer) && max_iterations.positive?
        raise ArgumentError, "max_iterations must be a positive Integer, not #{Arguments.shown(max_iterations)}"
      end

      @llm = llm
      @tools = checked(tools)
      @system_prompt = system_prompt
      @max_iterations = max_iterations
    end

    # @param message [String, Array<Hash>] what to do, or a conversation that ends with it
    # @param options [Hash] as {LLM#chat} takes them
    # @yieldparam event [AgentEvent] what happens, as it happens: text of the model piece by piece, each call of a tool
    #   before it is made and its result after, and the answer
    # @return [AgentResult]
    # @raise [AgentMaxIterationsError] when there is no answer in time, with the conversation in `messages`
    def run(message, **options, &block)
      messages = opening(message)
      calls = 0
      1.upto(max_iterations) do |iteration|
        result = step(messages, iteration, options, &block)
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

    def checked(tools)
      tools = Tool.all(tools)
      idle = tools.find { |tool| tool.respond_to?(:callable?) && !tool.callable? }
      raise ArgumentError, "the tool #{idle.name} has no block to call: give Tool.new one" if idle

      tools
    end

    def step(messages, iteration, options)
      return llm.chat_with_tools(messages, tools: tools, execute: true, **options) unless block_given?

      tell = ->(type, **fields) { yield AgentEvent.new(type: type, iteration: iteration, **fields) }
      observer = lambda do |type, about|
        type == :tool_call ? tell.call(type, tool_call: about) : tell.call(type, **about)
      end
      result = llm.chat_with_tools(messages, tools: tools, execute: true, observer: observer, **options) do |piece|
        tell.call(:text, text: piece)
      end
      tell.call(:answer, text: result.text_response || result.raw_response) unless result.has_tool_calls?
      result
    end

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
