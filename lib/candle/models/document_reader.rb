# frozen_string_literal: true

require "forwardable"

Candle::Native.complete(:DocumentReader)

module Candle
  # Writes what stands in images of documents: TrOCR, Donut and Nougat (`vision-encoder-decoder`), Pix2Struct,
  # Florence-2, and vision-language models, of which those for documents know what to do without a question.
  #
  # Pages of a PDF are read as images: `pdftoppm -r 150 -png file.pdf page` of poppler renders them.
  #
  # @example
  #   reader = Candle::DocumentReader.from_pretrained("spec/fixtures/tiny/trocr")
  #   reader.read("spec/fixtures/images/photo.png", max_length: 4).class # => String
  #   reader.read(["spec/fixtures/images/photo.png"] * 2, max_length: 4).size # => 2
  class DocumentReader
    extend Forwardable
    include Uncopyable
    Instrumentation.install(self)

    # What texts may be written as.
    FORMATS = %i[text markdown].freeze

    # What vision-language models for documents are asked, by their `model_type`, for each format.
    PROMPTS = {
      "glm_ocr" => { text: "Text Recognition:", markdown: "Text Recognition:" },
      "got_ocr2" => { text: " OCR: ", markdown: " OCR with format: " },
      "lighton_ocr" => { text: nil, markdown: nil },
      "paddleocr_vl" => { text: "OCR:", markdown: "OCR:" }
    }.freeze

    # What other vision-language models are asked.
    USUAL_PROMPTS = {
      text: "Write the text of this document, and nothing else.",
      markdown: "Write this document as Markdown, and nothing else."
    }.freeze

    # How many tokens a vision-language model writes at most where a call does not say it.
    MAX_LENGTH = 1024
    private_constant :PROMPTS, :USUAL_PROMPTS, :MAX_LENGTH

    # An encoder of images with a decoder of texts.
    #
    # @api private
    class ImageToText
      include Model

      class << self
        # As {DocumentReader.from_pretrained} takes them.
        def from_pretrained(source, **settings)
          load_model(source, **settings)
        end
      end

      # @param input [Array] images, as {Image.inputs} gives them
      # @param prompt [String, nil]
      # @param max_length [Integer, nil]
      # @param num_beams [Integer, nil]
      # @return [Array<Array>] for each image its text, token ids, the reason of the end, and its width and height
      def read(input, prompt: nil, max_length: nil, num_beams: nil)
        config = GenerationConfig.deterministic(max_length: max_length || defaults[:max_length],
                                                repetition_penalty: defaults[:repetition_penalty])
        _read(input, prompt, config.settings.except(:logit_bias).merge(num_beams: num_beams).compact)
      end

      # @return [Hash] what the checkpoint says of generating
      def defaults
        looked_up(:defaults) { _defaults.freeze }
      end

      private

      def smoke_test
        read(Image.inputs(Image::BLANK).first, max_length: 1)
      end
    end

    class << self
      # @param source [String, Pathname] a Hugging Face id or a directory
      # @param positional_device [Device, String, nil] the same as `device:`
      # @param device [Device, String, Symbol, nil] nil is the best one
      # @param dtype [Symbol, nil] `:f32`, `:f16`, `:bf16`; nil is f32 on the CPU and the checkpoint's on a GPU
      # @param tokenizer [Tokenizer, String, nil] instead of the model's own
      # @param revision [String, nil] a branch, tag or commit of the hub
      # @param token [String, nil] for private and gated models, before `HF_TOKEN`
      # @param cache_dir [String, Pathname, nil] where downloaded models are kept, before `HF_HUB_CACHE`
      # @return [DocumentReader]
      # @raise [ModelNotFoundError, DownloadError, OfflineError] when it can't be found or fetched
      # @raise [CorruptModelError, UnsupportedModelError] when it can't be read, with the reason
      # @raise [ArgumentError] for an unknown keyword
      def from_pretrained(source, positional_device = nil, device: nil, dtype: nil, tokenizer: nil, revision: nil,
                          token: nil, cache_dir: nil, **unknown)
        unless unknown.empty?
          Hints.refuse(unknown, method(:from_pretrained).parameters.filter_map { |kind, name| name if kind == :key })
        end
        settings = { device: device || positional_device, dtype: dtype, tokenizer: tokenizer, revision: revision,
                     token: token, cache_dir: cache_dir }
        klass = asks_vlm?(source, revision) ? VLM : ImageToText
        settings = settings.compact if klass == VLM
        of(klass.from_pretrained(source, **settings))
      end

      # The same as {from_pretrained}, with the source as an argument or as `model_path:`.
      #
      # @param source [String, Pathname, nil]
      # @param arguments [Array] as {from_pretrained} takes them
      # @param model_path [String, Pathname, nil]
      # @param options [Hash] as {from_pretrained} takes them
      # @return [DocumentReader]
      def new(source = nil, *arguments, model_path: nil, **options)
        return super(source) if ImageToText === source || VLM === source

        source ||= model_path
        unless source
          raise ArgumentError, "#{name} needs a model: use #{name}.from_pretrained with an id or a directory"
        end

        from_pretrained(source, *arguments, **options)
      end

      # A reader by a model that is loaded.
      #
      # @param model [VLM] a vision-language model
      # @return [DocumentReader]
      # @raise [ArgumentError] for what isn't one
      def of(model)
        return new(model) if ImageToText === model || VLM === model

        raise ArgumentError, "expected a Candle::VLM, not #{Arguments.shown(model)}"
      end

      private

      def asks_vlm?(source, revision)
        ModelKind.of(source, revision: revision) == :vlm
      rescue UnsupportedModelError, CorruptModelError
        false
      end
    end

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
    def_delegators :@model, :device, :dtype, :tokenizer, :model_id, :options, :model_info, :device_report, :close,
                   :closed?

    # @api private
    def initialize(model)
      @model = model
    end

    # Reads images. What the checkpoint says of generating counts: beams, lengths, words that do not come.
    #
    # @param input [String, Pathname, IO, Image, Array] an image or several
    # @param format [Symbol] `:text`, or `:markdown` of models that write it
    # @param task [Symbol, String, nil] what Florence-2 does, one of {#tasks}; nil is `:ocr`
    # @param text [String, nil] what a task is about, where {FlorenceTasks::WITH_TEXT} says it needs one
    # @param prompt [String, nil] what the text begins with (Donut: `"<s_cord-v2>"`), or what a vision-language model is
    #   asked instead of its usual prompt
    # @param max_length [Integer, nil] how many tokens at most; nil is what the checkpoint says
    # @param num_beams [Integer, nil] how many continuations are followed at once; nil is what the checkpoint says
    # @return [String, Array<Hash>, Array] a text, or of tasks that find places a list, see {FlorenceTasks}; one per
    #   image for an Array
    # @raise [InvalidInputError] for what isn't an image, naming its index
    # @raise [ArgumentError] for a format or a task that the model does not have
    def read(input, format: :text, task: nil, text: nil, prompt: nil, max_length: nil, num_beams: nil)
      images, single = Image.inputs(input)
      format = known_format(format)
      prompt &&= TextInput.utf8(prompt, "prompt")
      lengths = { max_length: Arguments.count(max_length, "max_length"),
                  num_beams: Arguments.count(num_beams, "num_beams") }
      found = if florence?
                by_task(images, task, text, prompt, lengths)
              else
                refuse_task(task, text)
                given = single ? [input] : input
                VLM === @model ? asked(given, format, prompt, lengths) : written(images, prompt, lengths)
              end
      single ? found.first : found
    end

    # @return [Array<Symbol>] the tasks of Florence-2; empty for other models
    def tasks
      florence? ? FlorenceTasks.names : []
    end

    # @return [Array<Symbol>] what {#read} can write texts as
    def formats
      VLM === @model || nougat? ? FORMATS : FORMATS.first(1)
    end

    # Computes something tiny, so that the first call of a user finds everything in place.
    #
    # @return [self]
    def warm_up
      @model.warm_up
      self
    end

    # @return [String] one line
    def inspect
      "#<#{self.class} #{model_id} #{model_info[:family]} #{dtype} on #{device}#{" (closed)" if closed?}>"
    end

    alias to_s inspect

    private

    def florence?
      model_info[:family] == "florence2"
    end

    # Its pages are written as Markdown in any case.
    def nougat?
      model_info[:family] == "nougat"
    end

    def known_format(format)
      name = Arguments.label(format, "format").to_sym
      return name if formats.include?(name)
      raise ArgumentError, "format must be :text or :markdown, not #{format.inspect}" unless FORMATS.include?(name)

      raise ArgumentError, "#{File.basename(model_id)} writes plain text: format :#{name} is for models that write it"
    end

    def refuse_task(task, text)
      return if NilClass === task && NilClass === text

      raise ArgumentError, "task and text are for Florence-2: #{File.basename(model_id)} only reads text"
    end

    def written(images, prompt, lengths)
      @model.read(images, prompt: prompt, **lengths).map { |text,| text.strip }
    end

    def by_task(images, task, text, prompt, lengths)
      task = FlorenceTasks.named(task || :ocr)
      raise ArgumentError, "the task sets the prompt: leave prompt out, or use text" if prompt

      asked = FlorenceTasks.prompt(task, text && TextInput.utf8(text, "text"))
      @model.read(images, prompt: asked, **lengths).map do |_, ids, _, size|
        FlorenceTasks.result(task, tokenizer.decode(ids, skip_special_tokens: false), size)
      end
    end

    def asked(images, format, prompt, lengths)
      raise ArgumentError, "num_beams is for other models than vision-language models" if lengths[:num_beams]

      prompt ||= PROMPTS.fetch(model_type, USUAL_PROMPTS).fetch(format)
      images.map do |image|
        parts = [{ type: "image", image: image }]
        parts << { type: "text", text: prompt } if prompt
        @model.chat([{ role: "user", content: parts }], max_length: lengths[:max_length] || MAX_LENGTH).strip
      end
    end

    def model_type
      @model_type ||= ModelKind.model_type(model_id, revision: options["revision"])
    end
  end
end
