# frozen_string_literal: true

module Candle
  # What a language model answered, with all that is known of the run. Frozen.
  class Completion
    # How many tokens went in, came out, and were found in the cache.
    Usage = Struct.new(:prompt_tokens, :completion_tokens, :cached_tokens, keyword_init: true)

    # How long it took to read the prompt, until the first token, and how fast the others came.
    Timings = Struct.new(:prompt_ms, :first_token_ms, :tokens_per_second, keyword_init: true)

    # @return [String] the text generated, without what the model thought before
    attr_reader :text
    # @return [String, nil] what the model thought before it answered; nil where it did not, or does not mark it
    attr_reader :reasoning
    # @return [Integer] how many of the tokens are reasoning; of many prompts at once it is estimated by characters
    attr_reader :reasoning_tokens
    # @return [Array<Integer>] its tokens, an end token included
    attr_reader :token_ids
    # @return [Array<Hash>, nil] for each token, when asked for: `{token:, id:, logprob:, top: [...]}`, the top being
    #   the likeliest tokens in the same form
    attr_reader :logprobs
    # @return [Symbol] `:stop`, `:length`, `:stop_sequence` or `:constraint`
    attr_reader :finish_reason
    # @return [Usage]
    attr_reader :usage
    # @return [Timings]
    attr_reader :timings

    # @api private
    def initialize(outcome, text:, logprobs:, reasoning: nil, reasoning_tokens: 0)
      @text = text.freeze
      @reasoning = reasoning&.freeze
      @reasoning_tokens = reasoning_tokens
      @token_ids = outcome.fetch(:token_ids).freeze
      @logprobs = logprobs&.freeze
      @finish_reason = outcome.fetch(:finish_reason)
      @usage = Usage.new(prompt_tokens: outcome.fetch(:prompt_tokens), completion_tokens: @token_ids.size,
                         cached_tokens: outcome.fetch(:cached_tokens)).freeze
      @timings = Timings.new(**outcome.slice(:prompt_ms, :first_token_ms, :tokens_per_second)).freeze
      freeze
    end

    # @return [String] the text
    def to_s
      text
    end

    # @return [Hash]
    def to_h
      { text: text, reasoning: reasoning, token_ids: token_ids, logprobs: logprobs, finish_reason: finish_reason,
        usage: usage.to_h, timings: timings.to_h }
    end

    # For pattern matching.
    #
    # @param _names [Array<Symbol>, nil]
    # @return [Hash]
    def deconstruct_keys(_names)
      to_h
    end

    # @return [String] all that {#to_h} has, as JSON
    def to_json(*state)
      to_h.to_json(*state)
    end

    # Two completions are equal when the same was generated of as long a prompt, however long it took and whatever had
    # been read before.
    #
    # @return [Boolean]
    def ==(other)
      Completion === other && generated == other.generated
    end

    alias eql? ==

    # @return [Integer]
    def hash
      generated.hash
    end

    # @return [String] one line
    def inspect
      "#<Candle::Completion #{text[0, 40].inspect} #{finish_reason} #{usage.completion_tokens} tokens>"
    end

    protected

    def generated
      [text, reasoning, token_ids, logprobs, finish_reason, usage.prompt_tokens]
    end
  end
end
