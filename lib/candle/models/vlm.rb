# frozen_string_literal: true

require "forwardable"

Candle::Native.complete(:VLM)

module Candle
  # A vision-language model: LLaVA 1.5, 1.6 and OneVision, SmolVLM and Idefics 3, Qwen2-VL to Qwen 3.5, Gemma 3 and
  # others. It describes images and answers questions about them, and with some of them about videos.
  #
  # An image is a path, the bytes of a file, an IO or a {Image}. Image embeddings are cached: a second question about an
  # image neither runs the vision tower nor computes the image's tokens again. A video is an Array of its frames.
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

    # How PaliGemma's checkpoints, which carry no template, were trained to read a prompt.
    PREFIX_TEMPLATE = "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}" \
                      "{% else %}{% for part in message['content'] if part['type'] == 'image' %}<image>{% endfor %}" \
                      "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}" \
                      "{% endif %}{% endfor %}"

    # How GOT-OCR, which carries no template either, was trained to.
    GOT_TEMPLATE = "<|im_start|>system\nYou should follow the instructions carefully and explain your answers in " \
                   "detail.<|im_end|>{% for message in messages %}<|im_start|>{{ message['role'] }}\n" \
                   "{% if message['content'] is string %}{{ message['content'] }}{% else %}" \
                   "{% for part in message['content'] if part['type'] == 'image' %}<img><imgpad></img>\n{% endfor %}" \
                   "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}" \
                   "{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    # How SmolVLM 2, whose own template may know images only, was trained to read a conversation with videos.
    VIDEO_TEMPLATE = "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}:" \
                     "{% if message['content'][0]['type'] != 'image' %} {% endif %}" \
                     "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}" \
                     "{% else %}<{{ part['type'] }}>{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}" \
                     "{% if add_generation_prompt %}Assistant:{% endif %}"

    # How many frames of a video were taken in a second, where it isn't said.
    FPS = 24

    # The frames of a video.
    Video = Struct.new(:frames, :fps)
    private_constant :PLAIN_TEMPLATE, :PREFIX_TEMPLATE, :GOT_TEMPLATE, :VIDEO_TEMPLATE, :MAX_LENGTH, :FPS, :Video

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

      # @!method prefix?
      #   @return [Boolean] whether prompts have no other special tokens than those that images bring

      # @!method video_place
      #   @return [String, nil] what a template writes for a video; nil where the model reads none

      # @!method encodings
      #   @return [Integer] how often the vision tower ran

      # @param llm [LLM]
      # @param images [Array]
      # @return [Array<Encoded>]
      def encode(llm, images)
        _encode(llm, Image.inputs(images).first)
      end

      # @param llm [LLM]
      # @param frames [Array] images
      # @param fps [Numeric] how many of them were taken in a second
      # @return [Encoded]
      def encode_video(llm, frames, fps)
        _encode_video(llm, Image.inputs(frames).first, fps.to_f)
      end

      # @param prompt [String] with what it says of each image
      # @return [String] as the tokenizer takes it
      def finish(prompt)
        _finish(prompt)
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
    # @example a video, of which two frames were taken in a second
    #   vlm = Candle::VLM.from_pretrained("spec/fixtures/tiny/qwen2-vl")
    #   frames = ["spec/fixtures/images/photo.png"] * 3
    #   vlm.chat([{ role: "user", content: [{ type: "video", video: frames, fps: 2 },
    #                                       { type: "text", text: "What is it?" }] }], max_length: 3).class # => String
    #
    # @param messages [Array<Hash>] `{role:, content:}` each; content is a String or a list of
    #   `{type: "image", image:}`, `{type: "video", video:, fps:}` and `{type: "text", text:}`. A video is an Array of
    #   images, of which `fps` were taken in a second: 24 where it isn't said
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
      return unless tokenizer.chat_templates.empty?

      return PREFIX_TEMPLATE if @image_encoder.prefix?

      @image_encoder.place == "<imgpad>" ? GOT_TEMPLATE : PLAIN_TEMPLATE
    end

    # @return [Array(String, Tokenizer::Ids, Array)] the prompt, its ids, and the images that some of them are of
    def encoded(messages, chat_template)
      media, bare = split(Messages.some(Messages.checked(messages) { [chat_template, template] }))
      seen = looked_at(media)
      used = chat_template || video_template(bare) || template
      literal = @llm.literal_content(used)
      bare, fence = literal.fence(bare)
      seen, prompt = spelled(written(bare, seen.size, used), seen)
      pieces = fence ? fenced_pieces(prompt, literal, fence) : pieces(prompt)
      [fence ? prompt.delete(fence) : prompt, placed(pieces, seen), seen]
    end

    # @return [Array(Array, Array<Hash>)] images and videos in their order, and the messages as templates take them
    def split(messages)
      media = []
      bare = messages.map do |message|
        content = message.fetch(:content) { message["content"] }
        next message if content.nil?

        # Templates of vision-language models look for parts, and skip plain texts.
        content = [{ type: "text", text: content }] unless content.is_a?(Array)
        message.except("content").merge(content: content.map { |part| part_of(part, media) })
      end
      [media, bare]
    end

    def part_of(part, media)
      return part if Messages.text?(part)

      type = %w[image video].find { |one| Messages.of_type?(part, one) }
      unless type
        raise InvalidInputError, 'a part of a message must be { type: "text", text: }, { type: "image", image: } or ' \
                                 "{ type: \"video\", video: }, not #{Arguments.shown(part)}"
      end

      medium = part[type.to_sym] || part[type]
      raise InvalidInputError, "a part of the type #{type} needs the #{type} itself, as #{type}:" unless medium

      media << (type == "video" ? video_of(medium, part[:fps] || part["fps"] || FPS) : medium)
      { type: type }
    end

    def video_of(frames, fps)
      unless Array === frames
        raise InvalidInputError, "video must be an Array of images, not #{Arguments.shown(frames)}"
      end
      raise InvalidInputError, "fps must be a number, not #{Arguments.shown(fps)}" unless Numeric === fps && fps.real?

      Video.new(frames, fps)
    end

    # @return [Array<ImageEncoder::Encoded, Array>] of each image and video; an Array of one for a video
    def looked_at(media)
      videos, images = media.partition { |medium| Video === medium }
      images = @image_encoder.encode(@llm, images)
      videos = videos.map { |video| [@image_encoder.encode_video(@llm, video.frames, video.fps)] }
      media.map { |medium| Video === medium ? videos.shift : images.shift }
    end

    # SmolVLM's processor takes another template than the checkpoint's own for conversations with videos.
    def video_template(messages)
      return unless @image_encoder.video_place == "<video>" && tokenizer.token_to_id("<end_of_utterance>")

      VIDEO_TEMPLATE if messages.any? { |message| video?(message) }
    end

    # The conversation as the template writes it. One that knows no images, as those of texts alone, is given them as
    # part of the text.
    def written(messages, count, template)
      prompt = tokenizer.render(messages, chat_template: template)
      return prompt if count.zero? || prompt.scan(places).size == count

      shown = tokenizer.render(messages.map { |message| with_video_places(message) }, chat_template: template)
      return shown if shown.match?(places)

      tokenizer.render(messages.map { |message| flat(message) }, chat_template: template)
    end

    def video?(message)
      message[:content].is_a?(Array) && message[:content].any? { |part| Messages.of_type?(part, "video") }
    end

    # For templates that know images and no videos.
    def with_video_places(message)
      return message unless video?(message)

      place = { type: "text", text: @image_encoder.video_place }
      message.merge(content: message[:content].map { |part| Messages.of_type?(part, "video") ? place : part })
    end

    def flat(message)
      return message unless message[:content].is_a?(Array)

      parts = message[:content].map do |part|
        place = place_of(part)
        place ? "#{place}\n" : part[:text] || part["text"]
      end
      message.merge(content: parts.join)
    end

    def place_of(part)
      return @image_encoder.place if Messages.image?(part)

      @image_encoder.video_place if Messages.of_type?(part, "video")
    end

    # What stands for an image or a video before it is spelled.
    def places
      @places ||= Regexp.union([@image_encoder.place, @image_encoder.video_place].compact)
    end

    # What was seen as the prompt has it, and the prompt with what it says of that.
    def spelled(prompt, seen)
      videos, images = seen.partition { |one| Array === one }
      ordered = []
      spelled = prompt.gsub(places) do |place|
        ordered << (place == @image_encoder.video_place ? videos.shift&.first : images.shift)
        ordered.last&.spelling
      end
      return [ordered, @image_encoder.finish(spelled)] if videos.empty? && images.empty? && !ordered.include?(nil)

      raise InvalidInputError, "the prompt has #{ordered.size} places for #{seen.size} images"
    end

    # The ids before, between and after the places of images.
    def pieces(prompt)
      id = @image_encoder.marker_id
      id ? begun_ids(prompt).split(id) : around_markers(prompt)
    end

    # The ids of a prompt, or of its beginning.
    def begun_ids(prompt)
      @llm.prompt_ids(prompt, @image_encoder.prefix? ? false : nil)
    end

    # The same where users have written what looks like control tokens.
    def fenced_pieces(prompt, literal, fence)
      plain = prompt.delete(fence)
      begun = begun_ids(plain).to_a
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
      [begun_ids(first.to_s), *rest.map { |piece| tokenizer.ids(piece, add_special_tokens: false) }]
    end
  end
end
