# frozen_string_literal: true

module Candle
  # The words of a `config.json`, checked as they are read, for files that are written.
  #
  # @api private
  class GgufConfig
    # What some configurations call sizes.
    OWN_WORDS = { "hidden_size" => "n_embd", "num_hidden_layers" => "n_layer", "num_attention_heads" => "n_head",
                  "intermediate_size" => "n_inner", "max_position_embeddings" => "n_positions",
                  "layer_norm_eps" => "layer_norm_epsilon" }.freeze
    # Sizes are numbers of 32 bits.
    MOST = (1 << 31) - 1
    private_constant :OWN_WORDS, :MOST

    # @return [String] the path of the `config.json`
    attr_reader :file

    # @param words [Hash]
    # @param file [String]
    def initialize(words, file)
      @words = words
      @file = file
    end

    def [](key)
      @words[key]
    end

    def key?(key)
      @words.key?(key)
    end

    # By the usual name or by the model's own.
    def said(key)
      @words.fetch(key) { @words[OWN_WORDS[key]] }
    end

    # @param keys [String, Array<String>] names of one word, of which the first that is there counts
    # @param usual [Integer, nil] where the configuration doesn't say
    def size(keys, usual = nil)
      key = Array(keys).find { |one| !said(one).nil? } || Array(keys).first
      value = said(key)
      return usual if value.nil? && usual
      return value if value.is_a?(Integer) && value.between?(1, MOST)

      raise CorruptModelError, "#{file}: #{key} must be a positive number, not #{Arguments.shown(value)}"
    end

    # As {#size}, for numbers that may be 0.
    def count(keys, usual = nil)
      Array(keys).any? { |key| said(key).eql?(0) } ? 0 : size(keys, usual)
    end

    # @param value [Object] what a configuration says
    # @param key [String] where
    # @return [Float]
    def number(value, key)
      return Float(value) if value.is_a?(Numeric) && value.to_f.finite?

      raise CorruptModelError, "#{file}: #{key} must be a number, not #{Arguments.shown(value)}"
    end

    def of_kind(value, kind, key)
      return value if value.nil? || value.is_a?(kind)

      raise CorruptModelError, "#{file}: #{key} is of the wrong kind: #{Arguments.shown(value)}"
    end

    def refuse(what)
      raise UnsupportedModelError, "#{file}: #{what} for this model"
    end

    # Refuses a word whose value is none of these.
    def refuse_others(key, usual)
      refuse("#{key}: #{Arguments.shown(self[key])} has no GGUF form") unless usual.include?(self[key])
    end
  end
end
