# frozen_string_literal: true

Candle::Native.complete(:ImageEmbeddingModel)
# Its native half makes them.
require "candle/tensor"

module Candle
  # Images to vectors whose nearness is nearness of looks, by ViT or DINOv2: the state of the token that stands for the
  # whole image. Models that also read texts are {CLIP}'s.
  #
  # @example
  #   model = Candle::ImageEmbeddingModel.from_pretrained("spec/fixtures/tiny/dinov2")
  #   model.embed("spec/fixtures/images/photo.png").size # => 32
  class ImageEmbeddingModel
    include Model
    extend ImageLoading

    FORMS = %i[array tensor packed int8 binary].freeze
    private_constant :FORMS

    # @example
    #   model = Candle::ImageEmbeddingModel.from_pretrained("spec/fixtures/tiny/vit")
    #   images = ["spec/fixtures/images/photo.png", "spec/fixtures/images/flower.png"]
    #   model.embed(images, as: :tensor).shape # => [2, 32]
    #
    # @param input [String, Pathname, IO, Image, Array] an image or several
    # @param normalize [Boolean] whether vectors get length 1
    # @param as [Symbol] as {EmbeddingModel#embed} takes it
    # @param progress [Boolean, #call] true shows a bar on a terminal; a Proc gets `(done, total)`
    # @return [Array<Float>, Array<Array<Float>>, Tensor, String, Array<String>] one vector for an image, one per image
    #   for an Array
    # @raise [InvalidInputError] for what isn't an image, naming its index
    def embed(input, normalize: true, as: :array, progress: false)
      images, single = Image.inputs(input)
      form = Arguments.choice(as, "as", FORMS)
      vectors = _embed(images, normalize ? true : false, form.to_s, Progress.for(progress))
      single && form != :tensor ? vectors.first : vectors
    end

    # @return [Integer] how many components a vector has
    def dimension
      model_info.fetch(:dimensions)
    end

    private

    def smoke_test
      embed(Image::BLANK)
    end
  end
end
