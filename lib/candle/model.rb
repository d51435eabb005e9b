# frozen_string_literal: true

# The native halves of models make them.
require "candle/tokenizer"

module Candle
  # What every model answers, whatever its task.
  module Model
    include Uncopyable

    # @return [String] the id or path that the model was loaded from
    attr_reader :model_id

    # @return [Hash] the options that it was loaded with, by String; Symbols find the same
    attr_reader :options

    # Gives the class methods of models to the class, and events to its calls.
    def self.included(base)
      base.extend(Loading)
      Instrumentation.install(base)
    end

    # Class methods shared by model classes.
    module Loading
      # The same as `from_pretrained`, with the source as an argument or as `model_path:`.
      #
      # @param source [String, Pathname, nil] nil is the class's default model, where it has one
      # @param arguments [Array] as `from_pretrained` takes them
      # @param model_path [String, Pathname, nil]
      # @param options [Hash] as `from_pretrained` takes them
      # @return [Model]
      def new(source = nil, *arguments, model_path: nil, **options)
        source ||= model_path || (const_defined?(:DEFAULT_MODEL_PATH) ? self::DEFAULT_MODEL_PATH : nil)
        unless source
          raise ArgumentError, "#{name} needs a model: use #{name}.from_pretrained with an id or a directory"
        end

        from_pretrained(source, *arguments, **options)
      end

      private

      # @return [Model] a loaded model that knows where it came from
      def load_model(source, **settings)
        source = TextInput.path(source, "source")
        given = settings[:tokenizer]
        settings[:cache_dir] = settings[:cache_dir]&.to_s
        settings[:tokenizer] = load_tokenizer(given, **settings.slice(:token, :cache_dir))
        settings[:packs] = ModelGems.packs([source, *settings[:adapters]&.map(&:last)])
        model = load_on_device(source, settings)
        named = given.is_a?(Tokenizer) ? given.options[:source] : given&.to_s
        model.loaded(source, settings.except(:tokenizer, :token, :packs).merge(tokenizer_source: named || source))
        model
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

    # @return [Device] where it runs
    def device
      Device.parse(model_info.fetch(:device))
    end

    # @return [DType] what it computes in
    def dtype
      DType.parse(model_info.fetch(:dtype))
    end

    # @return [Tokenizer, nil] the tokenizer it uses; nil for models that read no texts
    def tokenizer
      looked_up(:tokenizer) { _tokenizer }
    end

    # @return [Hash] `architecture family parameters hidden_size layers attention_heads vocabulary max_length device
    #   dtype files weight_bytes kernels verified`: `weight_bytes` is what the weights take as they are held, packed or
    #   quantized, and `verified` says whether the device was compared with the CPU on load
    def model_info
      looked_up(:model_info) { _info.tap { |info| info[:kernels].freeze }.freeze }
    end

    # Which device was asked for, which is used, and what computes on it: `kernels` has the kernels that this model
    # runs, each with its backend, on the CPU with the instruction set, and for products with what the weights are.
    #
    # @example
    #   model = Candle::LLM.from_pretrained("spec/fixtures/tiny/decoders/llama", device: "cpu")
    #   model.device_report[:kernels].keys # => ["activation", "attention", "linear", "rms_norm", "rope"]
    #
    # @return [Hash] `{requested:, actual:, dtype:, features: [...], kernels: {name => backend}, fallbacks: [...]}`
    def device_report
      {
        requested: @requested_device,
        actual: device.to_s,
        dtype: dtype.to_s,
        features: BuildInfo.features,
        kernels: model_info.fetch(:kernels),
        fallbacks: @fallbacks || unused_cuda
      }
    end

    # Gives the weights up at once, where the garbage collector would take its time. Calls that other threads have under
    # way end as usual, and the memory goes with the last of them; any later call raises {Error}. What the model says of
    # itself stays.
    #
    # @example
    #   model = Candle::EmbeddingModel.from_pretrained("spec/fixtures/tiny/bert")
    #   model.close
    #   model.closed? # => true
    #
    # @return [nil]
    def close
      _close
      nil
    end

    # Computes something tiny, so that the first call of a user finds everything in place, and a device that can't run
    # the model says so now.
    #
    # @example
    #   Candle::EmbeddingModel.from_pretrained("spec/fixtures/tiny/bert").warm_up.closed? # => false
    #
    # @return [self]
    def warm_up
      prove
      self
    end

    # @return [Boolean] whether {#close} was called
    def closed?
      _closed
    end

    # @return [String] one line
    def inspect
      "#<#{self.class} #{model_id} #{model_info[:family]} #{dtype} on #{device}#{" (closed)" if closed?}>"
    end

    alias to_s inspect

    # Notes what the model was loaded from and with.
    #
    # @api private
    def loaded(source, settings)
      @looked_up = {}
      @model_id = source
      @requested_device = settings[:device]&.to_s || "best"
      remember_options(settings.merge(model_id: source, device: device.to_s, dtype: dtype.to_s))
    end

    # Notes that the CPU took over from a device, and why.
    #
    # @api private
    def fell_back(device, error)
      @requested_device = device.to_s
      @fallbacks = ["#{device}: #{error.message}"].freeze
    end

    private

    # What is looked up once; a frozen model can do it too.
    def looked_up(name)
      @looked_up.fetch(name) { @looked_up[name] = yield }
    end

    def remember_options(options)
      @options = EitherKeys.of(options.compact.transform_keys(&:to_s))
    end

    # An installed CUDA build that does not load, when the best device was wanted.
    def unused_cuda
      problem = BuildInfo.cuda_problem
      problem && @requested_device == "best" && device.kind == :cpu ? ["cuda: #{problem}"] : []
    end
  end
end
