# frozen_string_literal: true

Candle::Native.complete(:CLIP)
# Its native half makes them.
require "candle/tensor"

module Candle
  # Texts and images as vectors of one space, by CLIP (OpenAI's and LAION's), SigLIP or SigLIP 2: an image is near the
  # texts that describe it.
  #
  # An image is a path, the bytes of a file, an IO or a {Image}. Images are prepared as the checkpoint's
  # `preprocessor_config.json` says. A model never changes and may be used by any number of threads.
  #
  # @example
  #   clip = Candle::CLIP.from_pretrained("spec/fixtures/tiny/clip")
  #   clip.embed_text("a photo of a dog").size # => 24
  #   clip.embed_image("spec/fixtures/images/photo.png").size # => 24
  class CLIP
    include Model

    FORMS = %i[array tensor packed int8 binary].freeze
    private_constant :FORMS

    class << self
      # @param source [String, Pathname] a Hugging Face id or a directory
      # @param positional_device [Device, String, nil] the same as `device:`
      # @param device [Device, String, Symbol, nil] nil is the best one
      # @param dtype [Symbol, nil] `:f32`, `:f16`, `:bf16`, or on the CPU `:int8`; nil is f32 on the CPU and the
      #   checkpoint's on a GPU
      # @param tokenizer [Tokenizer, String, nil] instead of the model's own
      # @param revision [String, nil] a branch, tag or commit of the hub
      # @param token [String, nil] for private and gated models, before `HF_TOKEN`
      # @param cache_dir [String, Pathname, nil] where downloaded models are kept, before `HF_HUB_CACHE`
      # @param verify [Boolean, nil] whether to compare the device with the CPU first; nil does so on GPUs
      # @return [CLIP]
      # @raise [ModelNotFoundError, DownloadError, OfflineError] when it can't be found or fetched
      # @raise [CorruptModelError, UnsupportedModelError] when it can't be read, with the reason
      def from_pretrained(source, positional_device = nil, device: nil, dtype: nil, tokenizer: nil, revision: nil,
                          verify: nil, token: nil, cache_dir: nil, **unknown)
        refuse(unknown)
        load_model(source, device: device || positional_device, dtype: dtype, tokenizer: tokenizer, revision: revision,
                           verify: verify, token: token, cache_dir: cache_dir)
      end
    end

    # @example
    #   clip = Candle::CLIP.from_pretrained("spec/fixtures/tiny/clip")
    #   clip.embed_text(%w[fox dog], as: :tensor).shape # => [2, 24]
    #
    # @param input [String, Array<String>] cut at {#max_length}
    # @param as [Symbol] as {EmbeddingModel#embed} takes it
    # @return [Array<Float>, Array<Array<Float>>, Tensor, String, Array<String>] vectors of length 1: one for a String,
    #   one per text for an Array
    # @raise [InvalidInputError] for what isn't a text, naming its index
    def embed_text(input, as: :array)
      texts, single = Arguments.texts(input)
      form = Arguments.choice(as, "as", FORMS)
      vectors = _embed_texts(texts, form.to_s)
      single && form != :tensor ? vectors.first : vectors
    end

    # @example
    #   clip = Candle::CLIP.from_pretrained("spec/fixtures/tiny/clip")
    #   images = Dir["spec/fixtures/images/*.png"].sort
    #   clip.embed_image(images).size == images.size # => true
    #
    # @param input [String, Pathname, IO, Image, Array] an image or several
    # @param as [Symbol] as {EmbeddingModel#embed} takes it
    # @param progress [Boolean, #call] true shows a bar on a terminal; a Proc gets `(done, total)`
    # @return [Array<Float>, Array<Array<Float>>, Tensor, String, Array<String>] vectors of length 1: one for an image,
    #   one per image for an Array
    # @raise [InvalidInputError] for what isn't an image, naming its index
    def embed_image(input, as: :array, progress: false)
      images, single = Image.inputs(input)
      form = Arguments.choice(as, "as", FORMS)
      vectors = _embed_images(images, form.to_s, Progress.for(progress))
      single && form != :tensor ? vectors.first : vectors
    end

    # @example
    #   clip = Candle::CLIP.from_pretrained("spec/fixtures/tiny/clip")
    #   photo = Candle::Image.open("spec/fixtures/images/photo.png")
    #   clip.similarity(photo, photo).round(5) # => 1.0
    #   clip.similarity("a photo of a dog", photo).between?(-1, 1) # => true
    #
    # @param one [String, Image, Pathname, IO, Array<Float>, Tensor] a text, an image or a vector. A String is a text
    #   unless it holds the bytes of an image: an image's path goes in by {Image.open} or as a Pathname
    # @param other [String, Image, Pathname, IO, Array<Float>, Tensor]
    # @return [Float] the cosine of both, from -1 to 1
    def similarity(one, other)
      Tensor.stack([vector(other)]).nearest(vector(one), top_k: 1).first.last
    end

    # @example
    #   clip = Candle::CLIP.from_pretrained("spec/fixtures/tiny/clip")
    #   images = ["spec/fixtures/images/photo.png", "spec/fixtures/images/flower.png"]
    #   found = clip.search("a flower", images, top_k: 1)
    #   found.first.keys # => [:index, :score, :image]
    #   clip.search("a flower", clip.embed_image(images, as: :tensor)).size # => 2
    #
    # @param query [String, Image, Pathname, IO, Array<Float>, Tensor] as {#similarity} takes it
    # @param images [Array, Tensor, #search] images, or vectors that were made earlier; or an index, whose `search` is
    #   called
    # @param top_k [Integer, nil] how many to return; nil is all
    # @return [Array<Hash>] `{index:, score:, image:}`, best first; `image` is what was given, nil for vectors
    def search(query, images, top_k: 10)
      top_k = Arguments.count(top_k, "top_k")
      wanted = vector(query)
      return images.search(wanted, top_k: top_k) if Arguments.answers?(images, :search)

      images = Arguments.members(images) if Enumerable === images && !(Tensor === images)
      return [] if Arguments.answers?(images, :empty?) && images.empty?

      given = Array === images && !vector?(images.first) ? images : nil
      matrix(images, given).nearest(wanted, top_k: top_k).map do |index, score|
        { index: index, score: score, image: given && given[index] }
      end
    end

    # Judges which text fits an image.
    #
    # @example
    #   clip = Candle::CLIP.from_pretrained("spec/fixtures/tiny/clip")
    #   found = clip.classify_image("spec/fixtures/images/photo.png", ["dog", "flower"])
    #   found.sum { |entry| entry[:score] }.round(5) # => 1.0
    #
    # @param input [String, Pathname, IO, Image, Array] an image or several
    # @param labels [Array<String>]
    # @param template [String] with `{}` where the label goes
    # @return [Array<Hash>, Array<Array<Hash>>] `{label:, score:}`, best first: softmax over the labels, or with SigLIP
    #   a sigmoid of each. One list for an image, one per image for an Array
    # @raise [InvalidInputError] for no labels, and for a template without `{}`
    def classify_image(input, labels, template: "a photo of a {}")
      images, single = Image.inputs(input)
      labels = TextInput.utf8_all(TextInput.text?(labels) ? [labels] : labels, "labels")
      rows = _match_texts(images, Arguments.filled(labels, TextInput.utf8(template, "template"), "template"))
      lists = rows.map { |row| Arguments.ranked(labels, row) }
      single ? lists.first : lists
    end

    # @return [Integer] how many components a vector has
    def dimension
      model_info.fetch(:dimensions)
    end

    # @return [Integer] how many tokens of a text are read, special ones included
    def max_length
      model_info.fetch(:max_length)
    end

    private

    def smoke_test
      embed_text("a")
    end

    def vector?(value)
      Array === value || Tensor === value || packed?(value)
    end

    def packed?(value)
      String === value && value.encoding == Encoding::BINARY && value.bytesize == 4 * dimension &&
        !Image.like?(value)
    end

    # @return [Tensor] f32 [dimension]
    def vector(value)
      return embed_image([value], as: :tensor).flatten_all if !(Array === value) && Image.like?(value)
      return Tensor.from_packed(value, [dimension], :f32) if packed?(value)
      return embed_text(value, as: :tensor).flatten_all if TextInput.text?(value)

      Tensor === value ? value.flatten_all : Tensor.new(value, :f32)
    end

    # @return [Tensor] f32 [n, dimension]
    def matrix(images, given)
      return embed_image(given, as: :tensor) if given
      return images if Tensor === images

      unless Array === images
        raise InvalidInputError, "images must be an Array of images or vectors, a Tensor or an Index, " \
                                 "not #{Arguments.shown(images)}"
      end
      Tensor.stack(images.map { |image| vector(image) })
    end
  end
end
