# frozen_string_literal: true

Candle::Native.complete(:TermIndex)

module Candle
  # The words of texts and the weights of sparse vectors, by the numbers of their documents.
  #
  # @api private
  class TermIndex
    # @param ignored [Array<String>] words that are never looked for
    # @return [TermIndex]
    def self.build(ignored)
      _build(ignored)
    end

    # @param numbers [Array<Integer>] each of them once
    # @param texts [Array<String>]
    # @return [void]
    def add(numbers, texts)
      _add(numbers, texts)
    end

    # @param number [Integer]
    # @param text [String] what was added by that number
    # @return [void]
    def remove(number, text)
      _remove(number, text)
    end

    # @param text [String]
    # @param most [Integer]
    # @param flags [String, nil] a byte for each number, 0 where it is not allowed
    # @param settings [Array] variant, k1, b and delta
    # @return [Array<Array(Integer, Float)>] numbers and scores, best first
    def search(text, most, flags, settings)
      _search(text, most, flags, settings)
    end

    # @param number [Integer]
    # @param weights [Array<Array(Integer, Float)>] terms and their weights
    # @return [void]
    def add_weights(number, weights)
      _add_weights(number, weights)
    end

    # @param number [Integer]
    # @return [void]
    def remove_weights(number)
      _remove_weights(number)
    end

    # @param weights [Array<Array(Integer, Float)>]
    # @param most [Integer]
    # @param flags [String, nil]
    # @return [Array<Array(Integer, Float)>] numbers and dot products, best first
    def search_weights(weights, most, flags)
      _search_weights(weights, most, flags)
    end
  end
end
