# frozen_string_literal: true

module Candle
  class Server
    # Texts and images in any order, for models that turn images into vectors.
    #
    # @api private
    class EmbeddingInputs
      # The models that do.
      KINDS = %i[clip image_embedding].freeze

      class << self
        # @param list [Array] texts, data URLs of images, or objects with `text` or `image`
        # @param name [String] what to call the list in an error
        # @param entry [Models::Entry]
        # @return [EmbeddingInputs]
        # @raise [Problem] 400, naming the element
        def read(list, name, entry)
          found = list.each_with_index.map { |value, index| element(value, "#{name}[#{index}]", name) }
          if entry.kind == :image_embedding && found.any?(String)
            raise problem("the model #{entry.name} reads images only, as data URLs", name)
          end

          new(found)
        end

        private

        def element(value, place, name)
          return Picture.url?(value) ? Picture.read(value, place) : value if value.is_a?(String)

          text, image = value.values_at("text", "image") if value.is_a?(Hash)
          return text if text.is_a?(String)
          raise problem("#{place} must be a text, a data URL of an image, or an object with text or image", name) unless
            image

          Picture.read(image, "#{place}.image", bare: true)
        end

        def problem(message, param)
          Problem.new(400, "invalid_request", message, param: param)
        end
      end

      # @param elements [Array<String, Picture>]
      def initialize(elements)
        @elements = elements
      end

      # @return [Array<String>]
      def texts
        @elements.grep(String)
      end

      # @return [Array<Picture>]
      def images
        @elements.grep(Picture)
      end

      # @param model [CLIP, ImageEmbeddingModel]
      # @param as [Symbol] the form of a vector
      # @param dimensions [nil] these models have no shorter vectors
      # @param options [Hash] of {ImageEmbeddingModel#embed}
      # @return [Array(Array, Integer)] a vector for each element, and how many tokens the texts have
      # @raise [Problem] 400 when shorter vectors are wanted
      def embed(model, as: :array, dimensions: nil, **options)
        if dimensions
          raise Problem.new(400, "invalid_request", "this model has no shorter vectors", param: "dimensions")
        end

        of_texts = texts.any? ? model.embed_text(texts, as: as) : []
        of_images = images.any? ? see(model, as, options) : []
        [@elements.map { |element| element.is_a?(String) ? of_texts.shift : of_images.shift }, tokens(model)]
      end

      private

      def see(model, as, options)
        model.is_a?(CLIP) ? model.embed_image(images, as: as) : model.embed(images, as: as, **options)
      end

      def tokens(model)
        return 0 if texts.empty?

        model.tokenizer.encode_batch(texts).sum { |ids| [ids.size, model.max_length].min }
      end
    end
  end
end
