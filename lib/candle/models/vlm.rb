# frozen_string_literal: true

require "forwardable"

Candle::Native.complete(:VLM)

module Candle
  # A vision-language model: LLaVA 1.5, 1.6 and OneVision, SmolVLM and Idefics 3, Qwen2-VL to Qwen 3.5, Gemma 3 and
  # others. It describes images and answers questions about them.
  #
  # An image is a path, the bytes of a file, an IO or a {Image}. Image embeddings are cached: a second question about an
  # image neither runs the vision tower nor computes the image's tokens again.
  #
  # @example
  #   vlm = Candle::VLM.from_pretrained("spec/fixtures/tiny/llava")
  #   vlm.describe("spec/fixtures/images/photo.png", max_length: 4).class # => String
  class VLM
    extend Forwardable
    include Uncopyable
    Instrumentation.install(self)

    # What {#describe} asks for.
    DESCRIBE = "Describe this image in detail."

    # How many tokens an answer has at most where neither the call nor its configuration says it.
    MAX_LENGTH = 256

    # How LLaVA's first checkpoints, which carry no template, were trained to read a conversation.
    PLAIN_TEMPLATE = "{% for message in messages %}{{ message['role'] | upper }}: " \
                     "{% if message['content'] is string %}{{ message['content'] }}{% else %}" \
                     "{% for part in message['content'] if part['type'] == 'image' %}<image>\n{% endfor %}" \
                     "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}" \
                     "{% endif %} {% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
    private_constant :PLAIN_TEMPLATE, :MAX_LENGTH

    # The image encoder of a language model.
    #
    # @api private
    class ImageEncoder
      # The embeddings of one image.
      class Encoded
        # @!method spelling
        #   @return [String] what a prompt says of the image, with a marker for each part of it

        # @return [Integer] how many markers stand for it in a prompt
        def places
          _sizes.first
        end

        # @return [Integer] how many tokens stand for the markers
        def size
          _sizes.last
        end
      end

      class << self
        # @param llm [LLM]
        # @param source [String]
        # @param settings [Hash] as the model was loaded with
        # @return [ImageEncoder]
        def load(llm, source, settings)
          _load(llm, source, settings.compact)
        end
      end

      # @!method marker
      #   @return [String] what stands in a prompt for the image

      # @!method marker_id
      #   @return [Integer, nil] its token; a GGUF file's tokenizer may have none

      # @!method place
      #   @return [String] what a template writes for an image

      # @!method encodings
      #   @return [Integer] how often the vision tower ran

      # @param llm [LLM]
      # @param images [Array]
      # @return [Array<Encoded>]
      def encode(llm, images)
        _encode(llm, Image.inputs(images).first)
      end

      # @param parts [Array<Tokenizer::Ids>] a prompt without its markers
      # @param seen [Array<Encoded>]
      # @return [Tokenizer::Ids] the prompt with the images
      def join(parts, seen)
        _join(parts, seen)
      end
    end

    class << self
      # @example a GGUF file with its vision tower
      #   vlm = Candle::VLM.from_pretrained("spec/fixtures/tiny/gguf-vlms/smolvlm", mmproj_file: "mmproj-f32.gguf")
      #   vlm.describe("spec/fixtures/images/photo.png", max_length: 4).class # => String
      #
      # @param source [String, Pathname] a Hugging Face id, a directory, or a `.gguf` file
      # @param positional_device [Device, String, nil] the same as `device:`
      # @param device [Device, String, Symbol, nil] nil is the best one
      # @param dtype [Symbol, nil] `:f32`, `:f16`, `:bf16`; nil is f32 on the CPU and the checkpoint's on a GPU
      # @param mmproj_file [String, Pathname, nil] for a GGUF file that of its vision tower: one of the repository by
      #   its name, or any by its path; nil is the one with `mmproj` in its name
      # @param options [Hash] further ones, as {LLM.from_pretrained} takes them
      # @return [VLM]
      # @raise [ModelNotFoundError, DownloadError, OfflineError] when it can't be found or fetched
      # @raise [CorruptModelError, UnsupportedModelError] when it can't be read, with the reason
      def from_pretrained(source, positional_device = nil, device: nil, dtype: nil, mmproj_file: nil, **options)
        mmproj_file &&= TextInput.path(mmproj_file, "mmproj_file")
        of(LLM.from_pretrained(source, device: device || positional_device, dtype: dtype, **options),
           mmproj_file: mmproj_file, **options.slice(:token))
      end

      # The same as {from_pretrained}, with the source as an argument or as `model_path:`.
      #
      # @param source [String, Pathname, nil]
      # @param arguments [Array] as {from_pretrained} takes them
      # @param model_path [String, Pathname, nil]
      # @param options [Hash] as {from_pretrained} takes them
      # @return [VLM]
      def new(source = nil, *arguments, model_path: nil, **options)
        return super(source, *arguments) if source.is_a?(LLM)

        source ||= model_path
        unless source
          raise ArgumentError, "#{name} needs a model: use #{name}.from_pretrained with an id or a directory"
        end

        from_pretrained(source, *arguments, **options)
      end

      # A language model with its image encoder.
      #
      # @api private
      def of(llm, **access)
        raise ArgumentError, "llm must be a Candle::LLM, not #{Arguments.shown(llm)}" unless LLM === llm

        loaded = { revision: llm.options["revision"], cache_dir: llm.options["cache_dir"], **access }
        new(llm, ImageEncoder.load(llm, llm.model_id, { device: llm.device.to_s, dtype: llm.dtype.to_s, **loaded }))
      end
    end

    # @return [LLM] the language model behind the image encoder
    attr_reader :llm

    # @!method device
    #   @return [Device] as {Model#device}
    # @!method dtype
    #   @return [DType] as {Model#dtype}
    # @!method tokenizer
    #   @return [Tokenizer] as {Model#tokenizer}
    # @!method model_id
    #   @return [String] as {Model#model_id}
    # @!method options
    #   @return [EitherKeys] as {Model#options}
    # @!method model_info
    #   @return [Hash] as {Model#model_info}
    # @!method device_report
    #   @return [Hash] as {Model#device_report}
    # @!method close
    #   @return [nil] as {Model#close}
    # @!method closed?
    #   @return [Boolean] as {Model#closed?}
    # @!method context_length
    #   @return [Integer] as {LLM#context_length}
    # @!method stats
    #   @return [Hash] as {LLM#stats}
    def_delegators :@llm, :device, :dtype, :tokenizer, :model_id, :options, :model_info, :device_report, :close,
                   :closed?, :context_length, :stats

    # @api private
    def initialize(llm, image_encoder)
      @llm = llm
      @image_encoder = image_encoder
    end

    # @param image [String, Pathname, IO, Image]
    # @param max_length [Integer, nil] how many tokens at most; nil is what `config` says, and 256 without it
    # @param config [GenerationConfig, Hash, nil] nil always takes the likeliest token
    # @param overrides [Hash] fields of {GenerationConfig}, and what {LLM#generate} takes
    # @yieldparam piece [String] the text as it comes
    # @return [String]
    # @raise [InvalidInputError] for what isn't an image
    def describe(image, max_length: nil, config: nil, **overrides, &block)
      ask(image, DESCRIBE, max_length: max_length, config: config, **overrides, &block)
    end

    # @example
    #   vlm = Candle::VLM.from_pretrained("spec/fixtures/tiny/llava")
    #   vlm.ask("spec/fixtures/images/photo.png", "What is it?", max_length: 3) { |piece| print piece }
    #
    # @param images [String, Pathname, IO, Image, Array] an image or several
    # @param question [String]
    # @param max_length [Integer, nil] how many tokens at most; nil is what `config` says, and 256 without it
    # @param config [GenerationConfig, Hash, nil] nil always takes the likeliest token
    # @param overrides [Hash] fields of {GenerationConfig}, and what {LLM#generate} takes
    # @yieldparam piece [String] the text as it comes
    # @return [String]
    # @raise [InvalidInputError] for what isn't an image, and for no image
    def ask(images, question, max_length: nil, config: nil, **overrides, &block)
      images = [images] unless Array === images
      raise InvalidInputError, "images is empty: ask about at least one" if images.empty?

      parts = images.map { |image| { type: "image", image: image } }
      parts << { type: "text", text: TextInput.utf8(question, "question") }
      overrides = { max_length: max_length, **overrides } if max_length
      overrides = GenerationConfig.canonical(overrides)
      overrides = { max_length: MAX_LENGTH, **overrides } unless config
      chat([{ role: "user", content: parts }], config: config, **overrides, &block)
    end

    # Answers a conversation with images in it.
    #
    # @example
    #   vlm = Candle::VLM.from_pretrained("spec/fixtures/tiny/llava")
    #   vlm.chat([{ role: "user", content: [{ type: "image", image: "spec/fixtures/images/photo.png" },
    #                                       { type: "text", text: "What is it?" }] }], max_length: 3).class # => String
    #
    # @param messages [Array<Hash>] `{role:, content:}` each; content is a String or a list of `{type: "image", image:}`
    #   and `{type: "text", text:}`
    # @param config [GenerationConfig, Hash, nil] nil always takes the likeliest token
    # @param overrides [Hash] fields of {GenerationConfig}, and what {LLM#generate} takes
    # @yieldparam piece [String] the text as it comes
    # @return [String]
    def chat(messages, config: nil, **overrides, &block)
      complete(messages, config: config, **overrides, &block).text
    end

    # The same as {#chat}, with everything that is known of the run.
    #
    # @param messages [Array<Hash>]
    # @param config [GenerationConfig, Hash, nil]
    # @param chat_template [String, nil] another template than the checkpoint's own
    # @param overrides [Hash]
    # @yieldparam piece [String]
    # @return [Completion]
    def complete(messages, config: nil, chat_template: nil, **overrides, &block)
      prompt, ids, seen = encoded(messages, chat_template)
      # The images are held until the end: a prompt's ids are theirs for as long.
      @llm.complete_ids(ids, prompt, config: config || GenerationConfig.deterministic, **overrides, &block)
          .tap { seen.clear }
    end

    # Runs the vision tower for images that are not cached.
    #
    # @param messages [Array<Hash>] as {#chat} takes them
    # @param chat_template [String, nil] another template than the checkpoint's own
    # @return [Integer] how many tokens {#complete} would read, those of images included
    def count_tokens(messages, chat_template: nil)
      encoded(messages, chat_template)[1].size
    end

    # A conversation, in which images may come with any turn.
    #
    # @example
    #   vlm = Candle::VLM.from_pretrained("spec/fixtures/tiny/llava")
    #   session = vlm.session
    #   session.say("What is it?", images: ["spec/fixtures/images/photo.png"], max_length: 3)
    #   session.messages.size # => 2
    #
    # @param system [String, nil] instructions that stand before the conversation
    # @param messages [Array<Hash>] the conversation so far, as {Session#messages} gives it
    # @param chat_template [String, nil] another template than the checkpoint's own
    # @return [Session]
    def session(system: nil, messages: [], chat_template: nil)
      Session.new(self, system: system, messages: messages, chat_template: chat_template)
    end

    # The completion of a chat.
    #
    # @api private
    def answer(messages, **options, &block)
      complete(messages, **options, &block)
    end

    # Computes something tiny, so that the first call of a user finds everything in place.
    #
    # @return [self]
    def warm_up
      describe(Image::BLANK, max_length: 1)
      self
    end

    # @return [Integer] how often the vision tower ran: once for each image, as long as it is remembered
    def looks
      @image_encoder.encodings
    end

    # @return [String] one line
    def inspect
      "#<#{self.class} #{model_id} #{model_info[:family]} #{dtype} on #{device}#{" (closed)" if closed?}>"
    end

    alias to_s inspect

    private

    def template
      tokenizer.chat_templates.empty? ? PLAIN_TEMPLATE : nil
    end

    # @return [Array(String, Tokenizer::Ids, Array)] the prompt, its ids, and the images that some of them are of
    def encoded(messages, chat_template)
      images, bare = split(Messages.some(Messages.checked(messages) { [chat_template, template] }))
      seen = @image_encoder.encode(@llm, images)
      literal = @llm.literal_content(chat_template || template)
      bare, fence = literal.fence(bare)
      prompt = spelled(written(bare, seen.size, chat_template || template), seen)
      pieces = fence ? fenced_pieces(prompt, literal, fence) : pieces(prompt)
      [fence ? prompt.delete(fence) : prompt, placed(pieces, seen), seen]
    end

    # @return [Array(Array, Array<Hash>)] the images in their order, and the messages as templates take them
    def split(messages)
      images = []
      bare = messages.map do |message|
        content = message.fetch(:content) { message["content"] }
        next message if content.nil?

        # Templates of vision-language models look for parts, and skip plain texts.
        content = [{ type: "text", text: content }] unless content.is_a?(Array)
        message.except("content").merge(content: content.map { |part| part_of(part, images) })
      end
      [images, bare]
    end

    def part_of(part, images)
      return part if Messages.text?(part)

      unless Messages.image?(part)
        raise InvalidInputError, 'a part of a message must be { type: "text", text: } or { type: "image", image: }, ' \
                                 "not #{Arguments.shown(part)}"
      end

      image = part[:image] || part["image"]
      raise InvalidInputError, "a part of the type image needs the image itself, as image:" unless image

      images << image
      { type: "image" }
    end

    # The conversation as the template writes it. One that knows no images, as those of texts alone, is given them as
    # part of the text.
    def written(messages, count, template)
      prompt = tokenizer.render(messages, chat_template: template)
      return prompt if count.zero? || prompt.include?(@image_encoder.place)

      tokenizer.render(messages.map { |message| flat(message) }, chat_template: template)
    end

    def flat(message)
      return message unless message[:content].is_a?(Array)

      parts = message[:content].map do |part|
        Messages.image?(part) ? "#{@image_encoder.place}\n" : part[:text] || part["text"]
      end
      message.merge(content: parts.join)
    end

    # The prompt with what it says of each image.
    def spelled(prompt, seen)
      places = prompt.scan(@image_encoder.place).size
      raise InvalidInputError, "the prompt has #{places} places for #{seen.size} images" if places != seen.size

      waiting = seen.map(&:spelling)
      prompt.gsub(@image_encoder.place) { waiting.shift }
    end

    # The ids before, between and after the places of images.
    def pieces(prompt)
      id = @image_encoder.marker_id
      id ? @llm.prompt_ids(prompt, nil).split(id) : around_markers(prompt)
    end

    # The same where users have written what looks like control tokens.
    def fenced_pieces(prompt, literal, fence)
      plain = prompt.delete(fence)
      begun = @llm.prompt_ids(plain, nil).to_a
      begun = begun.first(begun.size - tokenizer.ids(plain, add_special_tokens: false).size)
      id = @image_encoder.marker_id
      parts = id ? [literal.ids(prompt, fence)] : prompt.split(@image_encoder.marker, -1).map { literal.ids(_1, fence) }
      parts = parts.first.each_with_object([[]]) { |one, found| one == id ? found << [] : found.last << one } if id
      [begun + parts.first.to_a, *parts.drop(1)]
    end

    # The ids of the prompt with those of the images.
    def placed(pieces, seen)
      places = seen.sum(&:places)
      if pieces.size != places + 1
        raise InvalidInputError, "the prompt has #{pieces.size - 1} places for #{places} parts of images"
      end

      @image_encoder.join(pieces, seen)
    end

    # For models without a token for the marker.
    def around_markers(prompt)
      first, *rest = prompt.split(@image_encoder.marker, -1)
      [@llm.prompt_ids(first.to_s, nil), *rest.map { |piece| tokenizer.ids(piece, add_special_tokens: false) }]
    end
  end
end
