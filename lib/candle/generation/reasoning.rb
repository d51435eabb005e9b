# frozen_string_literal: true

module Candle
  # What a call wishes of a model's reasoning, and what chat templates are told of it.
  #
  # @api private
  class Reasoning
    # Names under which chat templates look for the reasoning of an earlier answer.
    FIELDS = %i[reasoning_content reasoning thinking].freeze
    # The efforts that chat templates know.
    EFFORTS = %w[none minimal low medium high xhigh max].freeze
    private_constant :FIELDS, :EFFORTS

    # @param value [Symbol, Boolean, Hash, nil] `:auto`, true, false, `{ budget: 512 }`
    # @param enable_thinking [Boolean, nil] the template's variable, before what `value` says
    # @param reasoning_effort [String, Symbol, nil] the template's variable
    # @return [Reasoning]
    # @raise [ArgumentError] for anything else
    def self.of(value = :auto, enable_thinking: nil, reasoning_effort: nil)
      effort = effort(reasoning_effort)
      switch(enable_thinking)
      case value
      when Reasoning then value
      when nil, :auto, "auto" then new(nil, nil, enable_thinking, effort)
      when true, false then new(value, nil, enable_thinking, effort)
      when Hash then with_budget(value.transform_keys(&:to_sym), enable_thinking, effort)
      else raise ArgumentError, "reasoning must be :auto, true, false or { budget: tokens }, not " \
                                "#{Arguments.shown(value)}"
      end
    end

    def self.switch(value)
      return if TrueClass === value || FalseClass === value || NilClass === value

      raise ArgumentError, "enable_thinking must be true or false, not #{Arguments.shown(value)}"
    end

    def self.with_budget(given, enable_thinking, effort)
      unknown = given.keys - %i[budget effort]
      raise ArgumentError, "reasoning takes budget and effort, not #{unknown.join(", ")}" if unknown.any?

      budget = given[:budget]
      unless budget.nil? || (Integer === budget && budget >= 0)
        raise ArgumentError, "the budget of reasoning must be an Integer of at least 0, not #{Arguments.shown(budget)}"
      end

      new(budget&.zero? ? false : true, budget, enable_thinking, effort || effort(given[:effort]))
    end

    def self.effort(value)
      return if NilClass === value

      name = String === value || Symbol === value ? value.to_s : nil
      return name if EFFORTS.include?(name)

      raise ArgumentError, "reasoning_effort must be #{EFFORTS[0...-1].join(", ")} or #{EFFORTS.last}, not " \
                           "#{Arguments.shown(value)}"
    end
    private_class_method :switch, :with_budget, :effort

    # Messages with the reasoning of earlier answers under the names that the templates look for. What the templates do
    # with it is theirs: most leave out that of earlier turns.
    #
    # @param messages [Array<Hash>]
    # @param templates [Array<String>]
    # @return [Array<Hash>]
    def self.told(messages, templates)
      names = FIELDS.select { |name| templates.any? { |text| text.match?(/\b#{name}\b/) } }
      messages.map do |message|
        reasoning = in_message(message) or next message
        message.reject { |key, _| FIELDS.include?(key.to_s.to_sym) }.merge(names.to_h { |name| [name, reasoning] })
      end
    end

    def self.in_message(message)
      return unless Hash === message

      FIELDS.filter_map { |name| message[name] || message[name.to_s] }.grep(String).first
    end
    private_class_method :in_message

    # @return [Integer, nil] how many tokens reasoning may have
    attr_reader :budget

    # @param wanted [Boolean, nil] nil leaves it to the template
    # @param budget [Integer, nil]
    # @param enable_thinking [Boolean, nil]
    # @param effort [String, nil]
    def initialize(wanted, budget, enable_thinking, effort)
      @wanted = enable_thinking.nil? ? wanted : enable_thinking
      @wanted = false if effort == "none"
      @budget = budget
      @effort = effort
    end

    # @return [Boolean] whether the model is not to reason at all
    def off?
      @wanted == false
    end

    # @return [Hash{Symbol => Object}] for the chat template; templates name the switch in two ways
    def variables
      { enable_thinking: @wanted, thinking: @wanted, thinking_budget: @budget,
        reasoning_effort: (@effort unless @effort == "none") }.compact
    end
  end
end
