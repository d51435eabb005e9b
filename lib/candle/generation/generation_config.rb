# frozen_string_literal: true

module Candle
  # How a language model generates. Frozen; {#with} makes changed copies.
  #
  # @example
  #   config = Candle::GenerationConfig.balanced(max_length: 64, seed: 7)
  #   config.with(temperature: 0.2).temperature # => 0.2
  class GenerationConfig
    # Every field with its default.
    DEFAULTS = {
      max_length: 512, temperature: 0.7, top_p: nil, top_k: nil, min_p: nil, repetition_penalty: 1.0,
      repetition_penalty_last_n: nil, presence_penalty: 0.0, frequency_penalty: 0.0, logit_bias: {}.freeze, seed: nil,
      stop_sequences: [].freeze, include_prompt: false, logprobs: nil, debug_tokens: false,
      constraint: nil, stop_on_constraint_satisfaction: true, stop_on_match: true
    }.freeze

    # What the calls of language models take beside the fields.
    CALL_OPTIONS = %i[schema pattern grammar adapter speculative tools chat_template reset_cache context_overflow
                      add_special_tokens progress reasoning enable_thinking reasoning_effort].freeze
    private_constant :CALL_OPTIONS

    # Other names of fields.
    ALIASES = { max_new_tokens: :max_length, max_tokens: :max_length }.freeze

    # @return [Integer] how many **new** tokens at most
    attr_reader :max_length
    # @return [Float] 0 picks the likeliest token
    attr_reader :temperature
    # @return [Float, nil] keeps the likeliest tokens that together reach this probability
    attr_reader :top_p
    # @return [Integer, nil] keeps this many of the likeliest tokens
    attr_reader :top_k
    # @return [Float, nil] keeps tokens at least this likely, relative to the likeliest
    attr_reader :min_p
    # @return [Float] above 1 disfavours tokens seen before, the prompt's included
    attr_reader :repetition_penalty
    # @return [Integer, nil] how many of the latest tokens that looks at; nil means all
    attr_reader :repetition_penalty_last_n
    # @return [Float] taken once from tokens generated before
    attr_reader :presence_penalty
    # @return [Float] taken from tokens as often as they were generated
    attr_reader :frequency_penalty
    # @return [Hash{Integer, String => Float}] what is added to the logits of tokens before one is chosen, from -100 to
    #   100 each. A key is the id of a token (an Integer or digits), a token, or a text that is a single token
    attr_reader :logit_bias
    # @return [Integer] the same seed gives the same text; where none is given one is drawn, so that a run can be
    #   repeated
    attr_reader :seed
    # @return [Array<String>] texts that end the generation and are not shown
    attr_reader :stop_sequences
    # @return [Boolean] whether the text begins with the prompt
    attr_reader :include_prompt
    # @return [Integer, nil] how many alternatives a Completion reports for each token
    attr_reader :logprobs
    # @return [Boolean] whether the text shows each token with its id, as in `[15043:Hello][1917: world]`
    attr_reader :debug_tokens
    # @return [StructuredConstraint, nil] what the text must match; a Hash (JSON schema), a Struct class or a
    #   Regexp may be given
    attr_reader :constraint
    # @return [Boolean] whether the text ends when it matches the constraint and nothing more could follow; false waits
    #   for the model to end it
    attr_reader :stop_on_constraint_satisfaction
    # @return [Boolean] whether the text ends as soon as it matches a regular expression, even if more could follow
    attr_reader :stop_on_match

    # @return [Integer] the same as {#max_length}
    def max_new_tokens
      max_length
    end

    alias max_tokens max_new_tokens

    class << self
      # @return [GenerationConfig] moderate sampling without truncation
      def default(**fields)
        new(fields)
      end

      # @return [GenerationConfig] always the likeliest token
      def deterministic(**fields)
        new({ temperature: 0.0, seed: 42 }.merge(fields))
      end

      # @return [GenerationConfig] varied
      def creative(**fields)
        new({ temperature: 1.0, top_p: 0.95, top_k: 50, repetition_penalty: 1.2 }.merge(fields))
      end

      # @return [GenerationConfig] between the two
      def balanced(**fields)
        new({ temperature: 0.7, top_p: 0.9, top_k: 40 }.merge(fields))
      end
    end

    # What a call's `config:` may be.
    #
    # @param value [GenerationConfig, Hash]
    # @return [GenerationConfig]
    # @raise [ArgumentError] for anything else
    # @api private
    def self.wrap(value)
      case value
      when GenerationConfig then return value
      when Hash
        return balanced(**value.transform_keys(&:to_sym)) if value.keys.all? { |key| named?(key) }
      end
      raise ArgumentError, "config must be a GenerationConfig or a Hash, not #{Arguments.shown(value)}"
    end

    # Options of a call, with fields by their own names.
    #
    # @param fields [Hash] with String or Symbol keys
    # @return [Hash{Symbol => Object}]
    # @raise [ArgumentError] when a field is there by two names
    # @api private
    def self.canonical(fields)
      unless Hash === fields && fields.keys.all? { |name| named?(name) }
        raise ArgumentError, "options must be a Hash by name, not #{Arguments.shown(fields)}"
      end

      fields.each_with_object({}) do |(name, value), found|
        field = ALIASES.fetch(name.to_sym, name.to_sym)
        if found.key?(field)
          names = fields.keys.select { |other| ALIASES.fetch(other.to_sym, other.to_sym) == field }.join(" and ")
          raise ArgumentError, "#{names} are names of the same option: pass one of them"
        end
        found[field] = value
      end
    end

    # Whether it may be the name of a field.
    def self.named?(key)
      Symbol === key || (String === key && key.encoding.ascii_compatible? && key.valid_encoding?)
    end
    private_class_method :named?

    # @param fields [Hash] any of {DEFAULTS}, with String or Symbol keys
    # @yieldreturn [Integer] the seed, where the fields have none
    # @raise [ArgumentError] for an unknown field or an impossible value
    def initialize(fields = nil, **keywords)
      given = [fields || {}, keywords].map { |hash| renamed(hash) }.reduce(:merge)
      unknown = given.keys - DEFAULTS.keys
      raise ArgumentError, unknown_message(unknown) if unknown.any?

      @given = DEFAULTS.merge(given, converted(given)).freeze
      @given.each { |name, value| instance_variable_set(:"@#{name}", value) }
      @seed = (block_given? ? yield : Random.new_seed & MAX_SEED) if NilClass === @seed
      check
      freeze
    end

    # A copy with other values. It keeps the seed, also one that was drawn.
    #
    # @return [GenerationConfig]
    def with(**fields)
      self.class.new(@given.merge(renamed(fields))) { seed }
    end

    # The same for another text: with a seed of its own where none was given.
    #
    # @api private
    # @return [GenerationConfig]
    def afresh
      self.class.new(@given)
    end

    # @return [Hash] all fields, with the seed that is used
    def to_h
      @given.merge(seed: seed)
    end

    alias options to_h

    # @return [String] all fields as JSON; a constraint as its source
    def to_json(*state)
      to_h.merge(constraint: constraint&.source).to_json(*state)
    end

    # For pattern matching.
    #
    # @example
    #   Candle::GenerationConfig.deterministic in { temperature: 0.0, max_length: Integer } # => true
    #
    # @param _names [Array<Symbol>, nil]
    # @return [Hash]
    def deconstruct_keys(_names)
      to_h
    end

    # Two configs are equal when the same was asked for; seeds that were drawn don't count.
    #
    # @return [Boolean]
    def ==(other)
      GenerationConfig === other && given == other.given
    end

    alias eql? ==

    # @return [Integer]
    def hash
      given.hash
    end

    # @return [String] the fields that differ from the defaults
    def inspect
      changed = given.reject { |name, value| value == DEFAULTS[name] }
      "#<Candle::GenerationConfig#{changed.map { |name, value| " #{name}=#{value.inspect}" }.join}>"
    end

    # What the engine takes.
    # @api private
    def settings
      {
        max_new_tokens: max_length, temperature: temperature.to_f, top_p: top_p, top_k: top_k, min_p: min_p,
        repetition_penalty: repetition_penalty.to_f, repetition_penalty_last_n: repetition_penalty_last_n,
        presence_penalty: presence_penalty.to_f, frequency_penalty: frequency_penalty.to_f,
        logit_bias: logit_bias, seed: seed & 0xffff_ffff_ffff_ffff,
        stop_sequences: stop_sequences, logprobs: logprobs == true ? 0 : (logprobs || nil),
        constraint: constraint && [constraint.kind.to_s, constraint.source], ending: ending
      }
    end

    MAX_SEED = (2**63) - 1
    # The largest number of tokens that a field may name.
    MOST = (2**48) - 1
    private_constant :MAX_SEED, :MOST

    protected

    # @return [Hash] the fields as they were asked for
    attr_reader :given

    private

    def renamed(fields)
      self.class.canonical(fields.to_h)
    end

    def converted(given)
      texts = Array(given[:stop_sequences]).map { |text| TextInput.utf8(text, "stop sequence").freeze }
      { stop_sequences: texts.freeze, constraint: StructuredConstraint.wrap(given[:constraint]),
        logit_bias: LogitBias.checked(given[:logit_bias]) }
    end

    def ending
      return "match" if stop_on_match && constraint&.kind == :regex

      stop_on_constraint_satisfaction ? "complete" : "model"
    end

    def unknown_message(names)
      message = "unknown generation option#{"s" if names.size > 1} #{names.join(", ")}"
      hints = names.filter_map { |name| Hints.keyword(name, DEFAULTS.keys + CALL_OPTIONS) }
      Hints.with(message, [*hints, "Known are #{DEFAULTS.keys.join(", ")}"])
    end

    def check
      integer(:max_length, least: 0)
      integer(:top_k, least: 1, optional: true)
      integer(:repetition_penalty_last_n, least: 0, optional: true)
      integer(:seed)
      number(:temperature, 0..)
      number(:top_p, 0..1, optional: true)
      number(:min_p, 0..1, optional: true)
      number(:repetition_penalty, Float::MIN..)
      number(:presence_penalty, -1e9..1e9)
      number(:frequency_penalty, -1e9..1e9)
    end

    def integer(name, least: nil, optional: false)
      value = public_send(name)
      return if optional && NilClass === value
      return if Integer === value && (least.nil? || value.between?(least, MOST))

      bound = " of at least #{least}" if least
      bound = " of at most #{MOST}" if Integer === value && value > MOST
      raise ArgumentError, "#{name} must be an Integer#{bound}, not #{Arguments.shown(value)}"
    end

    def number(name, range, optional: false)
      value = public_send(name)
      return if optional && NilClass === value
      return if Numeric === value && value.real? && range.cover?(value)

      raise ArgumentError, "#{name} must be a number in #{range}, not #{Arguments.shown(value)}"
    end
  end
end
