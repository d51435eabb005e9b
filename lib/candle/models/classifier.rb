# frozen_string_literal: true

Candle::Native.complete(:Classifier)

module Candle
  # Labels for texts, by any encoder or decoder with a sequence-classification head.
  #
  # @example
  #   classifier = Candle::Classifier.from_pretrained("spec/fixtures/tiny/bert-sequence")
  #   classifier.classify("hello world").size # => 3
  #   classifier.classify("hello world", top_k: 1).first.keys # => [:label, :score]
  class Classifier
    include Model
    include Statistics

    # @param input [String, Array<String>]
    # @param top_k [Integer, nil] how many labels to return; nil is all
    # @param pair [String, Array<String>, nil] a second text for models that read two: one per text, or one for all
    # @param batch_tokens [Integer, nil] how many tokens are computed at once
    # @return [Array<Hash>, Array<Array<Hash>>] `{label:, score:}`, best first: softmax over the labels, or a sigmoid of
    #   each where a text may have several. One list for a String, one per text for an Array
    # @raise [InvalidInputError] for what isn't a text, naming its index
    def classify(input, top_k: nil, pair: nil, batch_tokens: nil)
      texts, single = Arguments.texts(input)
      top_k = Arguments.count(top_k, "top_k")
      rows = _classify(texts, partners(pair, texts.size), Arguments.count(batch_tokens, "batch_tokens"))
      lists = rows.map { |row| Arguments.ranked(labels, row, top_k) }
      single ? lists.first : lists
    end

    # Classifies by labels that the model was not trained on: a model of natural language inference judges whether
    # "This example is {}." follows from the text.
    #
    # @example
    #   classifier = Candle::Classifier.from_pretrained("spec/fixtures/tiny/bert-sequence")
    #   found = classifier.zero_shot("the lazy dog", %w[animal city])
    #   found.sum { |entry| entry[:score] }.round(5) # => 1.0
    #
    # @param input [String, Array<String>]
    # @param labels [Array<String>]
    # @param hypothesis_template [String] with `{}` where the label goes
    # @param multi_label [Boolean] whether several labels may be true, each judged for itself
    # @param batch_tokens [Integer, nil] how many tokens are computed at once
    # @return [Array<Hash>, Array<Array<Hash>>] `{label:, score:}`, best first
    # @raise [UnsupportedModelError] when the model does no natural language inference
    def zero_shot(input, labels, hypothesis_template: "This example is {}.", multi_label: false, batch_tokens: nil)
      texts, single = Arguments.texts(input)
      labels = TextInput.utf8_all(TextInput.text?(labels) ? [labels] : labels, "labels")
      template = TextInput.utf8(hypothesis_template, "hypothesis_template")
      hypotheses = Arguments.filled(labels, template, "hypothesis_template")
      rows = _entailment(texts, hypotheses, multi_label ? true : false, Arguments.count(batch_tokens, "batch_tokens"))
      lists = rows.map { |row| Arguments.ranked(labels, row) }
      single ? lists.first : lists
    end

    # @return [Array<String>] in the order of the model's outputs
    def labels
      looked_up(:labels) { _labels.freeze }
    end

    # @return [Boolean] whether a text may have several labels at once
    def multi_label?
      _multi_label
    end

    # @return [Integer] how many tokens of a text are read, special ones included
    def max_length
      model_info.fetch(:max_length)
    end

    private

    def smoke_test
      classify("a")
    end

    def partners(pair, count)
      return if NilClass === pair
      return Array.new(count, TextInput.utf8(pair, "pair")) if TextInput.text?(pair)

      pairs = TextInput.utf8_all(pair, "pair")
      return pairs if pairs.size == count

      raise InvalidInputError, "#{count} texts need as many partners, not #{pairs.size}"
    end
  end
end
