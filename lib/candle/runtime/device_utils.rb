# frozen_string_literal: true

module Candle
  # Which device suits a model.
  module DeviceUtils
    # The kinds of models that {supports_model?} knows.
    MODEL_TYPES = %i[embedding_model reranker llm ner classifier vlm t5 clip sparse late_interaction speech
                     question_answering gliner gliclass audio_embedding audio_classifier voice_activity].freeze

    # The class that runs each of them.
    CLASSES = {
      embedding_model: :EmbeddingModel, reranker: :Reranker, llm: :LLM, ner: :NER, classifier: :Classifier,
      vlm: :VLM, t5: :Seq2Seq, clip: :CLIP, sparse: :SparseEmbeddingModel, late_interaction: :LateInteractionModel,
      speech: :Transcriber, question_answering: :QuestionAnswerer, gliner: :GLiNER, gliclass: :GLiClass,
      audio_embedding: :AudioEmbeddingModel, audio_classifier: :AudioClassifier, voice_activity: :VoiceActivityDetector
    }.freeze
    private_constant :CLASSES

    SOURCES = %i[source model_id model_path].freeze
    private_constant :SOURCES

    class << self
      # @return [Device] the same as {Device.best}
      def best_device
        Device.best
      end

      # Every kind of model that this version has a class for runs on every kind of device. Whether this machine has the
      # device is another question, which {Device.available_devices} answers.
      #
      # @example
      #   Candle::DeviceUtils.supports_model?("metal", :llm) # => true
      #
      # @param device [Device, String, Symbol, nil]
      # @param type [Symbol, String] one of {MODEL_TYPES}
      # @return [Boolean]
      # @raise [ArgumentError] for an unknown type
      # @raise [DeviceError] for an unknown device
      def supports_model?(device, type)
        type = Arguments.choice(type, "type", MODEL_TYPES)
        %i[cpu cuda metal].include?(Device.parse(device).kind) && Candle.const_defined?(CLASSES.fetch(type), false)
      end

      # @param type [Symbol, String] one of {MODEL_TYPES}
      # @return [Device] the best one for such models
      # @raise [ArgumentError] for an unknown type
      def best_device_for(type)
        Arguments.choice(type, "type", MODEL_TYPES)
        Device.best
      end

      # Loads a model on the wanted device and checks it with one tiny forward pass. When that fails, the reason is
      # logged and the model is loaded on the CPU.
      #
      # @example
      #   model = Candle::DeviceUtils.create_with_best_device(Candle::EmbeddingModel, :embedding_model,
      #                                                       source: "spec/fixtures/tiny/bert")
      #   model.device_report[:actual] == Candle::Device.best.to_s # => true
      #
      # @param klass [Class] such as {EmbeddingModel}
      # @param type [Symbol, String] one of {MODEL_TYPES}
      # @param device [Device, String, Symbol, nil] nil is the best one
      # @param strict [Boolean] whether to raise instead of falling back
      # @param options [Hash] as the class takes them; the model is named by `source:`, `model_id:` or `model_path:`
      # @return [Model]
      def create_with_best_device(klass, type, device: nil, strict: false, **options)
        best_device_for(type)
        wanted = Device.parse(device)
        create(klass, wanted, options)
      rescue Error => e
        raise if strict || wanted.nil? || wanted.kind == :cpu || !device_trouble?(e)

        fall_back(klass, wanted, e, options)
      end

      private

      def fall_back(klass, wanted, error, options)
        Candle.logger.warn("#{klass.name} does not run on #{wanted}, the CPU takes over: #{error.message}")
        model = create(klass, Device.cpu, options)
        model.fell_back(wanted, error) if model.respond_to?(:fell_back)
        model
      end

      def create(klass, device, options)
        source = options.values_at(*SOURCES).compact.first(1)
        model = if klass.respond_to?(:from_pretrained)
                  klass.from_pretrained(*source, device: device, **options.except(*SOURCES))
                else
                  klass.new(device: device, **options)
                end
        model.warm_up if model.respond_to?(:warm_up)
        model
      end

      # Another device does not help where these errors come from.
      def device_trouble?(error)
        [ModelNotFoundError, DownloadError, OfflineError, CorruptModelError, TokenizerError,
         InterruptedError].none? { |kind| error.is_a?(kind) }
      end
    end
  end
end
