# frozen_string_literal: true

module Candle
  # Prompts for a text between two others, with the tokens that the model's vocabulary has for it.
  #
  # @api private
  module FillInMiddle
    # What stands before the first text, between the two, and behind them; a form that ends with the first text begins
    # with the second.
    FORMS = [
      %w[<|fim_prefix|> <|fim_suffix|> <|fim_middle|>], %w[<fim_prefix> <fim_suffix> <fim_middle>],
      %w[<fim-prefix> <fim-suffix> <fim-middle>], %w[<｜fim▁begin｜> <｜fim▁hole｜> <｜fim▁end｜>],
      %w[<|code_prefix|> <|code_suffix|> <|code_middle|>], %w[<PRE> <SUF> <MID>], %w[▁<PRE> ▁<SUF> ▁<MID>]
    ].freeze
    # Codestral has the second text first, and two tokens.
    SUFFIX_FIRST = %w[[SUFFIX] [PREFIX]].freeze
    private_constant :FORMS, :SUFFIX_FIRST

    # @param tokenizer [Tokenizer]
    # @param before [String]
    # @param behind [String]
    # @return [String, nil] the prompt; nil where the vocabulary has no tokens for it
    def self.prompt(tokenizer, before, behind)
      known = ->(tokens) { tokens.all? { |token| tokenizer.token_to_id(token) } }
      if (form = FORMS.find(&known))
        first, second, third = form.map { |token| token.delete_prefix("▁") }
        return "#{first}#{before}#{second}#{behind}#{third}"
      end

      "#{SUFFIX_FIRST.first}#{behind}#{SUFFIX_FIRST.last}#{before}" if known.call(SUFFIX_FIRST)
    end
  end
end
