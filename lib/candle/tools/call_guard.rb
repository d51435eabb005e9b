# frozen_string_literal: true

module Candle
  # Keeps the calls valid that a model makes by its own choice: its text is free until a token begins a call, and then
  # follows a grammar until the call is over. Where the beginning is not a token of its own, nothing is guarded: the
  # same letters may be part of a text.
  #
  # @api private
  class CallGuard
    # @param formats [Array<ToolFormat>] the model's form first
    # @param tools [Array<Tool>]
    # @param tokenizer [Tokenizer]
    # @return [CallGuard, nil] nil where calls can't be guarded
    def self.for(formats, tools, tokenizer)
      own = formats&.first
      return if own.nil? || tools.nil? || tools.empty? || formats.include?(ToolFormats::FENCED)

      opening, grammar = own.guarded(tools)
      return unless grammar && own.tokens.any? { |token| opening.include?(token) && tokenizer.token_to_id(token) }

      new(opening, ToolFormats::Grammar.spell(grammar, tokenizer))
    end

    # @param opening [String] what begins a call
    # @param grammar [String] for what follows
    def initialize(opening, grammar)
      @opening = opening
      @grammar = grammar
    end

    # @param text [String]
    # @return [Boolean] whether a call begins where the text ends
    def begun?(text)
      text.end_with?(@opening)
    end

    # @return [Integer] so many letters of a text matter
    def reach
      @opening.size
    end

    # @return [Hash] settings of the engine for the call
    def settings
      constraint = StructuredConstraint.from_grammar(@grammar)
      { constraint: [constraint.kind.to_s, constraint.source], ending: "complete" }
    end
  end
end
