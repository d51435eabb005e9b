# frozen_string_literal: true

module Candle
  # Class methods of model classes: how models are found, loaded and refused.
  module Loading
    # Loads a model. Classes with options of their own have a method of their own.
    #
    # @param source [String, Pathname] a Hugging Face id or a directory
    # @param positional_device [Device, String, nil] the same as `device:`
    # @param device [Device, String, Symbol, nil] nil is the best one
    # @param dtype [Symbol, nil] `:f32`, `:f16`, `:bf16`, or on the CPU `:int8`; nil is f32 on the CPU and the
    #   checkpoint's on a GPU
    # @param tokenizer [Tokenizer, String, nil] instead of the model's own
    # @param revision [String, nil] a branch, tag or commit of the hub
    # @param max_length [Integer, nil] a lower limit of tokens than the model's, for one text or one window of it
    # @param token [String, nil] for private and gated models, before `HF_TOKEN`
    # @param cache_dir [String, Pathname, nil] where downloaded models are kept, before `HF_HUB_CACHE`
    # @param verify [Boolean, nil] whether to compare the device with the CPU first; nil does so on GPUs
    # @return [Model]
    # @raise [ModelNotFoundError, DownloadError, OfflineError] when it can't be found or fetched
    # @raise [CorruptModelError, UnsupportedModelError] when it can't be read, with the reason
    # @raise [ArgumentError] for an unknown keyword
    def from_pretrained(source, positional_device = nil, device: nil, dtype: nil, tokenizer: nil, revision: nil,
                        max_length: nil, verify: nil, token: nil, cache_dir: nil, **unknown)
      refuse(unknown)
      load_model(source, device: device || positional_device, dtype: dtype, tokenizer: tokenizer, revision: revision,
                         max_length: Arguments.count(max_length, "max_length"), verify: verify, token: token,
                         cache_dir: cache_dir)
    end

    # The same as `from_pretrained`, with the source as an argument or as `model_path:`.
    #
    # @param source [String, Pathname, nil] nil is the class's default model, where it has one
    # @param arguments [Array] as `from_pretrained` takes them
    # @param model_path [String, Pathname, nil]
    # @param options [Hash] as `from_pretrained` takes them
    # @return [Model]
    def new(source = nil, *arguments, model_path: nil, **options)
      source ||= model_path || (const_defined?(:DEFAULT_MODEL_PATH) ? self::DEFAULT_MODEL_PATH : nil)
      raise ArgumentError, "#{name} needs a model: use #{name}.from_pretrained with an id or a directory" unless source

      from_pretrained(source, *arguments, **options)
    end

    private

    # @raise [ArgumentError] when a call has keywords that `from_pretrained` does not know
    def refuse(unknown)
      return if unknown.empty?

      Hints.refuse(unknown, method(:from_pretrained).parameters.filter_map { |kind, name| name if kind == :key })
    end

    # @return [Model] a loaded model that knows where it came from
    def load_model(source, **settings)
      source = TextInput.path(source, "source")
      given = settings[:tokenizer]
      settings[:cache_dir] = settings[:cache_dir]&.to_s
      settings[:tokenizer] = load_tokenizer(given, **settings.slice(:token, :cache_dir))
      settings[:packs] = ModelGems.packs([source, *settings[:adapters]&.map(&:last)])
      model = explained(source, settings[:revision]) { load_on_device(source, settings) }
      named = given.is_a?(Tokenizer) ? given.options[:source] : given&.to_s
      model.loaded(source, settings.except(:tokenizer, :token, :packs).merge(tokenizer_source: named || source))
      model
    end

    # Adds to an error what to write instead of the source, or which class to use.
    def explained(source, revision, &load)
      SourceHints.explained(source, &load)
    rescue UnsupportedModelError => e
      right = ModelKind.advice(source, self, revision: revision)
      raise if right.nil?

      raise UnsupportedModelError, "#{right}. #{e.message}"
    end

    # A GPU that was named must do; one that was only the best there is may be replaced.
    def load_on_device(source, settings)
      _load(source, settings.compact)
    rescue DeviceError, OutOfMemoryError => e
      best = Device.best
      raise if best.kind == :cpu || ![nil, "best"].include?(settings[:device]&.to_s)

      Candle.logger.warn("#{name} does not run on #{best}, the CPU takes over: #{e.message}")
      model = _load(source, settings.compact.merge(device: "cpu"))
      model.fell_back(best, e)
      model
    end

    def load_tokenizer(tokenizer, **access)
      return tokenizer if tokenizer.nil? || tokenizer.is_a?(Tokenizer)

      path = tokenizer.respond_to?(:to_path) ? tokenizer.to_path : tokenizer
      return Tokenizer.from_file(path) if File.file?(path) && !path.end_with?(".gguf")

      Tokenizer.from_pretrained(path, **access)
    end
  end
end
