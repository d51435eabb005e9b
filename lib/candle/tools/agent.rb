# frozen_string_literal: true

module Candle
  # Lets a model call tools until it has an answer. What a tool raises, and calls of tools that do not exist, are told
  # to the model, which may do better. Tools that hang are ended, and results that are too long are cut off.
  #
  # @example
  #   clock = Candle::Tool.new(name: "clock", description: "The time") { Time.now.to_s }
  #   agent = Candle::Agent.new(Candle::LLM.from_pretrained("spec/fixtures/tiny/decoders/llama"), tools: [clock])
  #   agent.max_iterations # => 10
  class Agent
    MAX_ITERATIONS = 10
    # Seconds that a tool may take.
    TOOL_TIMEOUT = 60
    # Characters that the result of a tool may have.
    MAX_RESULT = 20_000

    # @return [LLM]
    attr_reader :llm
    # @return [Array<Tool>]
    attr_reader :tools
    # @return [String, nil]
    attr_reader :system_prompt
    # @return [Integer]
    attr_reader :max_iterations
    # @return [AgentState, nil] where the last run is; nil before the first
    attr_reader :state

    # What {#to_h} gave, to go on with {#resume}.
    #
    # @example
    #   llm = Candle::LLM.from_pretrained("spec/fixtures/tiny/decoders/llama")
    #   clock = Candle::Tool.new(name: "clock", description: "The time") { "noon" }
    #   saved = { messages: [{ role: "user", content: "Hi" }], iterations: 2 }
    #   Candle::Agent.from_h(saved, llm, tools: [clock]).state.iterations # => 2
    #
    # @param state [Hash] with String or Symbol keys
    # @param llm [LLM]
    # @param options [Hash] as {#initialize} takes them
    # @return [Agent]
    # @raise [ArgumentError] for what is not such a state
    def self.from_h(state, llm, **options)
      new(llm, **options).tap { |agent| agent.restore(AgentState.from_h(state)) }
    end

    # @param llm [LLM] or what else answers `chat_with_tools`
    # @param tools [Array<Tool>] each with a block to call
    # @param system_prompt [String, nil]
    # @param max_iterations [Integer] how often to ask the model at most
    # @param max_tokens [Integer, nil] how many tokens the model may generate in all steps together
    # @param max_seconds [Numeric, nil] how long the whole may take
    # @param tool_timeout [Numeric, nil] seconds that a tool may take, after which it is ended
    # @param max_result [Integer] characters of a tool's result that the model is told
    # @param parallel [Boolean] whether the calls of one turn run at the same time, in threads
    # @param approve [#call, nil] is given each {ToolCall} before it is made: false refuses it, and the model is told
    #   so; `:wait` ends the run for now, to be resumed later
    # @raise [ArgumentError] for what isn't a tool, or a tool without a block
    def initialize(llm, tools:, system_prompt: nil, max_iterations: MAX_ITERATIONS, max_tokens: nil, max_seconds: nil,
                   tool_timeout: TOOL_TIMEOUT, max_result: MAX_RESULT, parallel: true, approve: nil)
      { max_iterations: max_iterations, max_tokens: max_tokens, max_result: max_result }.each do |name, value|
        next if (value.is_a?(Integer) && value.positive?) || (value.nil? && name == :max_tokens)

        raise ArgumentError, "#{name} must be a positive Integer, not #{Arguments.shown(value)}"
      end

      @llm = llm
      @tools = checked(tools)
      @system_prompt = system_prompt
      @max_iterations = max_iterations
      @max_tokens = max_tokens
      @max_seconds = seconds(max_seconds, "max_seconds")
      @runner = ToolRunner.new(@tools, timeout: seconds(tool_timeout, "tool_timeout"), most: max_result,
                                       parallel: parallel, approve: approve)
      @turn = Mutex.new
    end

    # @api private
    def initialize_copy(_other)
      super
      @turn = Mutex.new
      @state = nil
    end

    # Any number of threads may call it, and tools too: each run has a conversation of its own. {#state} is that of the
    # run that began while no other did.
    #
    # @param message [String, Array<Hash>] what to do, or a conversation that ends with it
    # @param options [Hash] as {LLM#chat} takes them
    # @yieldparam event [AgentEvent] what happens, as it happens: reasoning and text of the model piece by piece, each
    #   call of a tool before it is made and its result after, and the end
    # @return [AgentResult]
    # @raise [AgentMaxIterationsError] when there is no answer in time, with the conversation in `messages`
    # @raise [AgentBudgetError] when the budget of tokens or of time is spent
    def run(message, **options, &block)
      return dup.run(message, **options, &block) unless @turn.try_lock

      begin
        @state = AgentState.start(opening(message))
        work(options, &block)
      ensure
        @turn.unlock
      end
    end

    # Goes on from {#state}: with the calls that wait for approval, or with the next question to the model.
    #
    # @param options [Hash] as {LLM#chat} takes them
    # @yieldparam event [AgentEvent]
    # @return [AgentResult]
    # @raise [InvalidInputError] when there is nothing to go on from, or the agent works already
    def resume(**options, &block)
      raise InvalidInputError, "this agent has not started: call run, or create it with Agent.from_h" unless state
      raise InvalidInputError, "this agent is running: wait until it has ended" unless @turn.try_lock

      begin
        work(options, &block)
      ensure
        @turn.unlock
      end
    end

    # @return [Hash] {#state} as a Hash that can be written as JSON, for {.from_h}; nil before the first run
    def to_h
      state&.to_h
    end

    # @api private
    def restore(state)
      @state = state
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

    def seconds(value, name)
      return if value.nil?
      return value if value.is_a?(Numeric) && value.real? && value.positive?

      raise ArgumentError, "#{name} must be a positive number of seconds, not #{Arguments.shown(value)}"
    end

    def work(options, &block)
      began = now - state.seconds
      deadline = @max_seconds && (began + @max_seconds)
      Instrumentation.event("agent", -> { payload }) do
        answer = catch(:waiting) { answered(options, deadline, &block) }
        answer ? finished(answer, &block) : waiting(&block)
      end
    ensure
      state.seconds = now - began if began
    end

    def answered(options, deadline, &block)
      loop do
        settle(deadline, &block) if state.pending.any?
        answer = step(options, deadline, &block)
        return answer if answer
      end
    end

    # Makes the calls that the model wants.
    def settle(deadline, &block)
      calls = state.pending_calls
      results = @runner.call(calls, deadline: deadline) do |kind, about|
        tell(kind, **(kind == :tool_call ? { tool_call: about } : about), &block)
      end
      throw :waiting unless results

      results.each_with_index { |outcome, index| state.messages << ToolMessages.tool(outcome, index) }
      state.tool_calls_made += calls.size
      state.pending = []
    end

    # @return [ToolCallResult, nil] the answer; nil where the model calls tools
    def step(options, deadline, &block)
      within_budgets(deadline)
      state.iterations += 1
      result = Instrumentation.event("agent_step", -> { payload }) { ask(limited(options), deadline, &block) }
      state.tokens += tokens_of(result)
      spent if cut_off?(result)
      return result unless result.has_tool_calls?

      state.messages << ToolMessages.assistant(result)
      remember(result)
      nil
    end

    # Another object than our own models has made the calls by itself.
    def remember(result)
      if llm.is_a?(ToolUse)
        state.pending = result.tool_calls.each_with_index.map do |call, index|
          { name: call.name, arguments: call.arguments, id: ToolMessages.id_of(call, index) }
        end
      else
        result.tool_results.each_with_index { |outcome, index| state.messages << ToolMessages.tool(outcome, index) }
        state.tool_calls_made += result.tool_results.size
      end
    end

    def ask(options, deadline, &block)
      execute = !llm.is_a?(ToolUse)
      return llm.chat_with_tools(state.messages, tools: tools, execute: execute, **options) unless block || deadline

      watch = ToolStream.new(llm.respond_to?(:tokenizer) ? llm.tool_formats : ToolFormats::ALL, tools: tools)
      result = llm.chat_with_tools(state.messages, tools: tools, execute: execute, **options) do |piece, kind = :text|
        within_time(deadline)
        kind == :reasoning ? tell(:reasoning, text: piece, &block) : show(watch.push(piece), &block)
      end
      show(watch.finish(result.raw_response.to_s), &block)
      result
    end

    def show(events, &block)
      events.each { |kind, text| tell(:text, text: text, &block) if kind == :text }
    end

    def tell(type, **fields)
      yield AgentEvent.new(type: type, iteration: state.iterations, **fields) if block_given?
    end

    def within_budgets(deadline)
      within_time(deadline)
      spent if @max_tokens && state.tokens >= @max_tokens
      return if state.iterations < max_iterations

      raise AgentMaxIterationsError.new("no answer after #{max_iterations} iterations; raise max_iterations:, or see " \
                                        "in #messages what the model is doing", messages: state.messages)
    end

    # Whether an answer ends where the budget does.
    def cut_off?(result)
      return false unless @max_tokens && state.tokens >= @max_tokens

      !result.has_tool_calls? && result.completion.finish_reason == :length
    end

    def spent
      raise AgentBudgetError.new("no answer within #{@max_tokens} tokens; raise max_tokens:, or see in #messages " \
                                 "what the model is doing", messages: state.messages)
    end

    def within_time(deadline)
      return unless deadline && now >= deadline

      raise AgentBudgetError.new("no answer within #{@max_seconds} seconds; raise max_seconds:, or see in #messages " \
                                 "what the model is doing", messages: state.messages)
    end

    # No step generates more than is left.
    def limited(options)
      return options unless @max_tokens

      left = @max_tokens - state.tokens
      config = GenerationConfig.wrap(options[:config] || GenerationConfig.balanced)
      given = GenerationConfig.canonical(options)[:max_length] || config.max_length
      GenerationConfig.canonical(options).merge(max_length: [given, left].min)
    end

    def tokens_of(result)
      completion = result.completion if result.respond_to?(:completion)
      completion.respond_to?(:usage) ? completion.usage.completion_tokens : 0
    end

    def opening(message)
      given = message.is_a?(Array) ? message.dup : [{ role: "user", content: TextInput.utf8(message, "message") }]
      system_prompt ? [{ role: "system", content: system_prompt }, *given] : given
    end

    def finished(result, &block)
      response = result.text_response || result.raw_response
      tell(:done, text: response, &block)
      outcome(response, :done, result.respond_to?(:reasoning) ? result.reasoning : nil)
    end

    def waiting(&block)
      tell(:done, &block)
      outcome(nil, :waiting, nil)
    end

    def outcome(response, status, reasoning)
      AgentResult.new(response: response, messages: state.messages, iterations: state.iterations,
                      tool_calls_made: state.tool_calls_made, status: status, reasoning: reasoning)
    end

    def payload
      { tools: tools.map(&:name), iterations: state.iterations, tool_calls: state.tool_calls_made,
        tokens: state.tokens }
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end
  end
end
