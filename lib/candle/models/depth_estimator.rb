# frozen_string_literal: true

Candle::Native.complete(:DepthEstimator)
# Its native half makes them.
require "candle/media/image"
require "candle/tensor"

module Candle
  # How far each pixel of an image is, by Depth Anything (1 and 2) and DPT.
  #
  # @example
  #   estimator = Candle::DepthEstimator.from_pretrained("spec/fixtures/tiny/depth_anything")
  #   found = estimator.estimate("spec/fixtures/images/photo.png")
  #   found.keys # => [:predicted_depth, :depth]
  #   found[:predicted_depth].shape # => [66, 88]
  #   found[:depth].size # => [88, 66]
  class DepthEstimator
    include Model
    extend ImageLoading

    # @param input [String, Pathname, IO, Image, Array] an image or several
    # @return [Hash, Array<Hash>] `{predicted_depth:, depth:}` for an image, one per image for an Array.
    #   `predicted_depth` is a {Tensor} of shape `[height, width]` with the model's numbers at the image's own size:
    #   metres of a metric model, larger where nearer of a relative one. `depth` is an {Image} of them, black at the
    #   smallest number and white at the largest
    # @raise [InvalidInputError] for what isn't an image, naming its index
    def estimate(input)
      images, single = Image.inputs(input)
      found = _estimate(images).map { |numbers, image| { predicted_depth: numbers, depth: image } }
      single ? found.first : found
    end

    private

    def smoke_test
      estimate(Image::BLANK)
    end
  end
end
