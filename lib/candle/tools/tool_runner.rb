# frozen_string_literal: true

require "json"

module Candle
  # Runs the calls of one turn: several at a time, each within its time, with results of a bounded size. What goes wrong
  # is part of the result; nothing is raised.
  #
  # @api private
  class ToolRunner
    # So many tools run at a time.
    THREADS = 8
    # So deep may tools run agents whose tools run agents.
    DEEPEST = 8
    # What is said of a call that nobody approves.
    REFUSED = "the user did not approve this call"
    private_constant :THREADS, :DEEPEST, :REFUSED

    # @param tools [Array<Tool>]
    # @param timeout [Numeric, nil] seconds that a call may take
    # @param most [Integer] characters that a result may have
    # @param parallel [Boolean] whether calls of one turn run at the same time
    # @param approve [#call, nil] is given each call; false refuses it, `:wait` puts the turn off
    def initialize(tools, timeout: nil, most: 20_000, parallel: true, approve: nil)
      @tools = tools
      @timeout = timeout
      @most = most
      @parallel = parallel
      @approve = approve
    end

    # @param calls [Array<ToolCall>]
    # @param deadline [Float, nil] on the monotonic clock
    # @yieldparam kind [Symbol] `:tool_call` before a call, `:tool_result` after it, in the thread that asked
    # @yieldparam about [ToolCall, Hash]
    # @return [Array<Hash>, nil] `{tool_call:, result:, error:}` for each call, in their order; nil where the turn is
    #   put off
    def call(calls, deadline: nil, &block)
      approved = calls.map { |one| approved?(one) }
      return if approved.include?(:wait)

      block ||= proc {}
      calls.each { |one| block.call(:tool_call, one) }
      results = Array.new(calls.size)
      pairs = calls.zip(approved).each_with_index.to_a
      pairs.each_slice(@parallel ? THREADS : 1) { |some| run(some, deadline, results, &block) }
      results
    end

    private

    def approved?(call)
      return true unless @approve

      answer = @approve.call(call)
      answer == :wait ? :wait : !!answer
    end

    # Results are told in the order in which tools end. A tool that is alone and has all the time runs in the thread
    # that asked.
    def run(some, deadline, results, &block)
      return in_threads(some, deadline, results, &block) if some.size > 1 || @timeout || deadline

      (call, approved), index = some.first
      results[index] = within(depth + 1) { outcome(call, approved) }
      yield :tool_result, results[index]
    end

    # How many tools this one runs within, whatever their threads are.
    def depth
      Thread.current.thread_variable_get(:candle_tool_depth).to_i
    end

    def within(depth)
      before = Thread.current.thread_variable_get(:candle_tool_depth)
      Thread.current.thread_variable_set(:candle_tool_depth, depth)
      yield
    ensure
      Thread.current.thread_variable_set(:candle_tool_depth, before)
    end

    def in_threads(some, deadline, results)
      done = Queue.new
      deeper = depth + 1
      threads = some.to_h do |(call, approved), index|
        thread = Thread.new { within(deeper) { done << [index, outcome(call, approved)] } }
        [index, thread.tap { |one| one.report_on_exception = false }]
      end
      waiting = some.to_h { |(call, _), index| [index, [call, until_when(deadline)]] }
      until waiting.empty?
        index, result = next_of(done, waiting)
        call, = waiting.delete(index)
        results[index] = result || late(call)
        yield :tool_result, results[index]
      end
    ensure
      threads&.each_value(&:kill)
    end

    def until_when(deadline)
      [deadline, @timeout && (now + @timeout)].compact.min
    end

    # @return [Array(Integer, Hash)] the next result; nil for one that did not come in time
    def next_of(done, waiting)
      index, (_, limit) = waiting.min_by { |_, (_, at)| at || Float::INFINITY }
      loop do
        return done.pop if limit.nil?
        return done.pop(true) unless done.empty?
        return [index, nil] if now >= limit

        sleep([0.005, limit - now].min.clamp(0.001, 0.005))
      end
    end

    def late(call)
      { tool_call: call, result: nil, error: "the tool #{call.name} took longer than it may, and was ended" }
    end

    def outcome(call, approved)
      return { tool_call: call, result: nil, error: REFUSED } unless approved

      found = nil
      Instrumentation.event("tool", -> { { tool: call.name, error: found && found[:error] } }) do
        found = made(call)
      end
    end

    def made(call)
      tool = @tools.find { |candidate| candidate.name == call.name }
      names = @tools.map(&:name).join(", ")
      raise InvalidInputError, "unknown tool #{call.name}; there are #{names}" unless tool
      raise InvalidInputError, "tools are nested more than #{DEEPEST} levels deep" if depth > DEEPEST

      { tool_call: call, result: bounded(tool.execute(call.arguments)), error: nil }
    rescue StandardError, NotImplementedError, SystemStackError, NoMemoryError => e
      { tool_call: call, result: nil, error: bounded(e.message.to_s.scrub) }
    end

    # A result that is too long becomes the beginning of its text, and says so.
    def bounded(result)
      text = ToolMessages.text_of(result)
      return result if text.size <= @most

      "#{text[0, @most]}\n[cut off: the result has #{text.size} characters, of which these are the first #{@most}]"
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end
  end
end
