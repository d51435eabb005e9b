# frozen_string_literal: true

module Candle
  # One answer under way. Mostly that is one run of the engine. Where the model is to stop reasoning, or a constraint
  # begins behind it, another run goes on from the tokens so far; the prefix cache has them.
  #
  # @api private
  class AnswerRun
    # How an answer may go on with another run.
    #
    # @!attribute budget
    #   @return [Integer, nil] how many tokens reasoning may have
    # @!attribute ending
    #   @return [String, nil] what closes reasoning
    # @!attribute ending_ids
    #   @return [Array<Integer>] its tokens
    # @!attribute constrained
    #   @return [Hash, nil] settings of the engine for what comes behind reasoning
    # @!attribute guard
    #   @return [CallGuard, nil] for calls of tools
    Plan = Struct.new(:budget, :ending, :ending_ids, :constrained, :guard, keyword_init: true)

    # @return [LLM::Run] what the engine is at
    attr_reader :run
    # @return [GenerationConfig]
    attr_reader :config
    # @return [String]
    attr_reader :prompt
    # @return [AnswerReader, nil] nil where the answer is the text of the run
    attr_reader :reader

    # @param ids [Array<Integer>] the prompt
    # @param settings [Hash] of the engine
    # @param plan [Plan, nil]
    # @yieldparam ids [Array<Integer>]
    # @yieldparam settings [Hash]
    # @yieldreturn [LLM::Run]
    def initialize(ids, settings, config:, prompt:, reader: nil, plan: nil, &start)
      @ids = ids
      @settings = settings
      @config = config
      @prompt = prompt
      @reader = reader
      @plan = plan || Plan.new
      @start = start
      @past = []
      @run = start.call(ids, settings)
    end

    # @return [Boolean] whether it may take more than one run
    def several?
      !(@plan.budget || @plan.constrained || @plan.guard).nil?
    end

    # Follows the answer to its end.
    #
    # @yieldparam kind [Symbol] `:reasoning` or `:text`
    # @yieldparam text [String]
    # @yieldparam tokens [Array(Integer, Integer)] the range of the run's tokens since the last part
    # @return [void]
    def follow(&block)
      loop do
        why = steps(&block)
        break unless why && go_on(why, &block)
      end
      tell(@reader.finish(@run.outcome[:token_ids]), &block) if @reader
      @followed = true
    end

    # @return [Hash] what the answer has come to, as {LLM::Run#outcome} has it
    def outcome
      last = @run.outcome
      unless @followed
        @reader&.read_all(last[:token_ids], @run.pieces)
        @followed = true
      end
      return last if @past.empty?

      all = [*@past, last]
      first = all.first
      last.merge(first.slice(:prompt_tokens, :cached_tokens, :prompt_ms, :first_token_ms),
                 text: all.map { |one| one[:text] }.join, token_ids: all.flat_map { |one| one[:token_ids] },
                 logprobs: all.flat_map { |one| one[:logprobs] },
                 finish_reason: last[:finish_reason] || :length)
    end

    # Ends it, whether it is over or not.
    #
    # @return [void]
    def release
      @run.release
    end

    private

    # @return [Symbol, nil] why the answer goes on with another run; nil at its end
    def steps(&block)
      @count = @told = 0
      @tail = +""
      while (piece = @run.step)
        @count += 1
        within = @reader&.reasoning?
        parts = @reader ? @reader.push(piece) { reached[:token_ids] } : [[:text, piece]]
        tell(parts, &block)
        why = turning(within, parts) if several?
        return why if why
      end
      ended
    end

    # Whether the answer goes on behind the end of a run: a model may end its answer within reasoning, where a
    # constraint still waits, and a call of a tool is followed by free text.
    def ended
      reason = @run.outcome[:finish_reason]
      return :spent if @plan.constrained && @reader.reasoning? && reason == :stop

      :called if @calling && reason == :constraint
    end

    def turning(within, parts)
      return :call if @plan.guard && !@calling && begins_call?(parts)
      return :reasoned if @plan.constrained && within && !@reader.reasoning?

      :spent if @plan.budget && @reader.reasoning? && @reader.reasoning_tokens >= @plan.budget
    end

    def begins_call?(parts)
      parts.each { |kind, text| @tail << text if kind == :text }
      @tail = @tail[-@plan.guard.reach..] || @tail
      @plan.guard.begun?(@tail)
    end

    # The engine may be some tokens ahead of what was read.
    def reached
      outcome = @run.outcome
      return outcome if outcome[:token_ids].size <= @count

      outcome.merge(token_ids: outcome[:token_ids].first(@count), logprobs: outcome[:logprobs].first(@count),
                    finish_reason: nil)
    end

    def tell(parts)
      return unless block_given?

      parts.each do |kind, text|
        next if text.empty?

        yield kind, text, [@told, @count]
        @told = @count
      end
    end

    def go_on(why, &block)
      made = reached
      ends = made[:finish_reason] == :stop ? made[:token_ids][0...-1] : made[:token_ids]
      forced = why == :spent ? @plan.ending_ids : []
      tell(@reader.turn(ends), &block) if @reader
      tell(@reader.insert(@plan.ending, forced.size), &block) if why == :spent
      @past << made.merge(token_ids: ends + forced)
      @run.release
      @ids += ends + forced
      begin_again(why)
      true
    end

    # The settings of a call are for the call alone. Its schema may be one that can't be followed: then it is free.
    def begin_again(why)
      left = @settings[:max_new_tokens] - @past.last[:token_ids].size
      @settings = @plan.constrained if @plan.constrained && !%i[call called].include?(why)
      @settings = @settings.merge(max_new_tokens: [left, 0].max)
      @plan = Plan.new(guard: @plan.guard) unless why == :call
      @calling = why == :call
      @run = @start.call(@ids, @calling ? @settings.merge(@plan.guard.settings) : @settings)
    rescue InvalidInputError => e
      raise unless @calling

      Candle.logger.debug { "a call of a tool is not guarded: #{e.message}" }
      @calling = false
      @plan = Plan.new
      @run = @start.call(@ids, @settings)
    end
  end
end
