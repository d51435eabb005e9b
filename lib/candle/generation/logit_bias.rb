# frozen_string_literal: true

module Candle
  # What a call adds to the logits of single tokens: `logit_bias:` of {GenerationConfig}.
  #
  # @api private
  module LogitBias
    # What a bias may be.
    RANGE = (-100..100)
    # More entries than this are a mistake.
    MOST = 4096

    module_function

    # @param given [Hash{Integer, String, Symbol => Numeric}, nil]
    # @return [Hash{Integer, String => Float}] ids where digits were given
    # @raise [ArgumentError] for anything else
    def checked(given)
      return {}.freeze if NilClass === given
      raise ArgumentError, "logit_bias must be a Hash of tokens and biases, not #{Arguments.shown(given)}" unless
        Hash === given
      raise ArgumentError, "logit_bias must have at most #{MOST} entries, not #{given.size}" if given.size > MOST

      pairs = given.map { |token, bias| [key(token), number(token, bias)] }
      by_key(pairs).freeze
    end

    # @param biases [Hash{Integer, String => Float}] as {checked} makes them
    # @param tokenizer [Tokenizer]
    # @return [Array<Array(Integer, Float)>] by the ids of their tokens
    # @raise [ArgumentError] for a text that isn't one token
    def by_id(biases, tokenizer)
      by_key(biases.map { |token, bias| [Integer === token ? token : id(token, tokenizer), bias] }).to_a
    end

    def by_key(pairs)
      pairs.each_with_object({}) do |(token, bias), found|
        raise ArgumentError, "logit_bias names token #{token.inspect} twice" if found.key?(token)

        found[token] = bias
      end
    end

    def key(token)
      return token if Integer === token && token.between?(0, (2**32) - 1)
      raise ArgumentError, "a token of logit_bias must be an id or a text, not #{Arguments.shown(token)}" if
        Integer === token

      text = Arguments.label(token, "a token of logit_bias")
      raise ArgumentError, "a token of logit_bias must be an id or a text, not \"\"" if text.empty?
      return text.dup.freeze unless text.match?(/\A\d+\z/)

      key(text.to_i)
    end

    def number(token, bias)
      return bias.to_f if Numeric === bias && bias.real? && RANGE.cover?(bias)

      raise ArgumentError,
            "the logit_bias of #{Arguments.shown(token)} must be a number in #{RANGE}, not #{Arguments.shown(bias)}"
    end

    # A token of the vocabulary, or a text that is one.
    def id(text, tokenizer)
      found = tokenizer.token_to_id(text)
      return found if found

      ids = tokenizer.encode(text, add_special_tokens: false)
      return ids.first if ids.size == 1

      raise ArgumentError,
            "logit_bias takes single tokens, and #{text.inspect} is #{ids.size} of them: #{ids.first(8).join(", ")}"
    end
    private_class_method :by_key, :key, :number, :id
  end
end
