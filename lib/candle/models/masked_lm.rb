# frozen_string_literal: true

Candle::Native.complete(:MaskedLM)

module Candle
  # What could stand where a text has a gap.
  #
  # @example
  #   model = Candle::MaskedLM.from_pretrained("spec/fixtures/tiny/bert-masked")
  #   model.fill("the #{model.mask_token} dog", top_k: 1).first[:token] # => "paris"
  class MaskedLM
    include Model
    include Statistics

    # @param input [String, Array<String>] each with {#mask_token} where a word is missing
    # @param top_k [Integer] how many proposals to return
    # @return [Array<Hash>, Array<Array>] `{token:, id:, score:, sequence:}`, best first; for a text with several gaps
    #   one such list for each; for an Array of texts what each of them gives
    # @raise [InvalidInputError] for what isn't a text, and for a text without a gap
    def fill(input, top_k: 5)
      texts, single = Arguments.texts(input)
      top_k = Arguments.count(top_k, "top_k") || raise(ArgumentError, "top_k must be a positive Integer, not nil")
      results = texts.map do |text|
        lists = _fill(text, top_k)
        lists.size == 1 ? lists.first : lists
      end
      single ? results.first : results
    end

    # @return [String] what stands for a gap, such as `[MASK]`
    def mask_token
      _mask_token
    end

    # @return [Integer] how many tokens of a text are read, special ones included
    def max_length
      model_info.fetch(:max_length)
    end

    private

    def smoke_test
      fill(mask_token, top_k: 1)
    end
  end
end
