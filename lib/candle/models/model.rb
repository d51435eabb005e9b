# frozen_string_literal: true

# The native halves of models make them.
require "candle/text/tokenizer"

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
    #   quantized, adapters included, and `verified` says whether the device was compared with the CPU on load
    def model_info
      looked_up(:model_info) { read_info }
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

    # Frees the weights at once, without waiting for the garbage collector. Calls of other threads that are in progress
    # end as usual, and the memory is freed with the last of them; later calls raise {Error}. `model_info` and the like
    # stay available.
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
      smoke_test
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

    # What {#model_info} says from now on.
    def read_info
      @looked_up[:model_info] = _info.tap { |info| info[:kernels].freeze }.freeze
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
