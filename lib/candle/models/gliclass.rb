# frozen_string_literal: true

Candle::Native.complete(:GLiClass)

module Candle
  # How well texts fit labels that a call names, in one forward pass for all labels. Loads GLiClass checkpoints with one
  # encoder for texts and labels, or one for each.
  #
  # @example
  #   model = Candle::GLiClass.from_pretrained("spec/fixtures/tiny/gliclass")
  #   found = model.classify("the lazy dog", labels: %w[animal city], multi_label: false)
  #   found.sum { |entry| entry[:score] }.round(5) # => 1.0
  class GLiClass
    include Model
    include Statistics

    # Of texts beyond {#max_length} the end is left out.
    #
    # @param input [String, Array<String>]
    # @param labels [Array<String, Symbol>, String, Symbol]
    # @param multi_label [Boolean] whether several labels may fit, each judged for itself; otherwise one of them does,
    #   and the scores add up to 1
    # @param threshold [Float] leave out labels with a lower score
    # @param top_k [Integer, nil] how many labels to return; nil is all
    # @return [Array<Hash>, Array<Array<Hash>>] `{label:, score:}`, best first. One list for a String, one per text for
    #   an Array
    # @raise [InvalidInputError] for what isn't a text, for no labels, and for labels that leave no room for the text
    def classify(input, labels:, multi_label: true, threshold: 0.0, top_k: nil)
      texts, single = Arguments.texts(input)
      names = Arguments.labels(labels)
      least = Arguments.fraction(threshold, "threshold")
      top_k = Arguments.count(top_k, "top_k")
      lists = _classify(texts, names, multi_label ? true : false).map do |row|
        Arguments.ranked(names, row, top_k).select { |entry| entry[:score] >= least }
      end
      single ? lists.first : lists
    end

    # @return [Integer] how many tokens are read, those of labels and special ones included
    def max_length
      model_info.fetch(:max_length)
    end

    private

    def smoke_test
      classify("a", labels: ["a"])
    end
  end
end
