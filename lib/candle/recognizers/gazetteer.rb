# frozen_string_literal: true

Candle::Native.complete(:Gazetteer)

module Candle
  # Terms in one automaton of the engine.
  #
  # @api private
  class Gazetteer
    # @param terms [Array<String>]
    # @param case_sensitive [Boolean]
    # @return [Gazetteer]
    def self.build(terms, case_sensitive)
      _build(terms, case_sensitive)
    end

    # @param text [String]
    # @return [Array<Array(Integer, Integer)>] start and end of each occurrence in characters
    def places(text)
      _find(text)
    end
  end
end
