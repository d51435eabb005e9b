# frozen_string_literal: true

module Candle
  # Token ids with their names, as {LLM} and {Seq2Seq} report log probabilities.
  #
  # @api private
  module NamedTokens
    private

    def named_logprobs(entries)
      entries.map do |id, logprob, top|
        named(id, logprob).merge(top: top.map { |other, value| named(other, value) })
      end
    end

    def named(id, logprob)
      { token: tokenizer.id_to_token(id), id: id, logprob: logprob }
    end
  end
end
