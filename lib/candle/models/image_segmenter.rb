# frozen_string_literal: true

Candle::Native.complete(:ImageSegmenter)
# Its native half makes them.
require "candle/media/image"

module Candle
  # What is where in images: a label for every pixel, by SegFormer.
  #
  # @example
  #   segmenter = Candle::ImageSegmenter.from_pretrained("spec/fixtures/tiny/segformer")
  #   found = segmenter.segment("spec/fixtures/images/photo.png")
  #   found.first.keys # => [:label, :score, :mask]
  #   found.first[:mask].size # => [88, 66]
  class ImageSegmenter
    include Model
    extend ImageLoading

    # @param input [String, Pathname, IO, Image, Array] an image or several
    # @param labels [Array<String>, nil] only parts with these labels; nil is all
    # @return [Array<Hash>, Array<Array<Hash>>] `{label:, score:, mask:}`, the largest part first: `score` is how much
    #   of the image it covers, and `mask` an {Image} of the same size, white where the label is. One list for an image,
    #   one per image for an Array
    # @raise [InvalidInputError] for what isn't an image, naming its index
    # @raise [ArgumentError] for labels that the model does not have
    def segment(input, labels: nil)
      images, single = Image.inputs(input)
      wanted = Arguments.known_labels(labels, self.labels)
      lists = _segment(images).map do |parts|
        parts = parts.map { |label, score, mask| { label: self.labels.fetch(label), score: score, mask: mask } }
        parts = parts.select { |part| wanted.include?(part[:label]) } if wanted
        parts.sort_by.with_index { |part, index| [-part[:score], index] }
      end
      single ? lists.first : lists
    end

    # @return [Array<String>] in the order of the model's classes
    def labels
      looked_up(:labels) { _labels.freeze }
    end

    private

    def smoke_test
      segment(Image::BLANK)
    end
  end
end
