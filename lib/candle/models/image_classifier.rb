# frozen_string_literal: true

Candle::Native.complete(:ImageClassifier)

module Candle
  # Labels for images, by ViT or DINOv2 with a classifier on top.
  #
  # @example
  #   classifier = Candle::ImageClassifier.from_pretrained("spec/fixtures/tiny/vit-classifier")
  #   classifier.classify("spec/fixtures/images/photo.png", top_k: 1).first.keys # => [:label, :score]
  class ImageClassifier
    include Model
    extend ImageLoading

    # @param input [String, Pathname, IO, Image, Array] an image or several
    # @param top_k [Integer, nil] how many labels to return; nil is all
    # @return [Array<Hash>, Array<Array<Hash>>] `{label:, score:}`, best first: softmax over the labels, or a sigmoid of
    #   each where an image may have several. One list for an image, one per image for an Array
    # @raise [InvalidInputError] for what isn't an image, naming its index
    def classify(input, top_k: nil)
      images, single = Image.inputs(input)
      top_k = Arguments.count(top_k, "top_k")
      lists = _classify(images).map { |row| Arguments.ranked(labels, row, top_k) }
      single ? lists.first : lists
    end

    # @return [Array<String>] in the order of the model's outputs
    def labels
      looked_up(:labels) { _labels.freeze }
    end

    private

    def smoke_test
      classify(Image::BLANK)
    end
  end
end
