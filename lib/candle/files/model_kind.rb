# frozen_string_literal: true

require "json"

module Candle
  # What a model is for, as its files say: the sentence-transformers files, `config.json`, or a GGUF file's metadata.
  #
  # @example
  #   Candle::ModelKind.of("spec/fixtures/tiny/bert-sentence") # => :embedding
  #   Candle::ModelKind.of("spec/fixtures/tiny/bert-reranker") # => :reranker
  #   Candle::ModelKind.of("spec/fixtures/tiny/decoders/llama") # => :llm
  module ModelKind
    # Each kind, and the name of the class that runs it.
    CLASSES = {
      llm: :LLM, embedding: :EmbeddingModel, reranker: :Reranker, classifier: :Classifier, ner: :NER,
      masked_lm: :MaskedLM, question_answering: :QuestionAnswerer, seq2seq: :Seq2Seq, vlm: :VLM, clip: :CLIP,
      sparse: :SparseEmbeddingModel, late_interaction: :LateInteractionModel, image_embedding: :ImageEmbeddingModel,
      image_classifier: :ImageClassifier, document_reader: :DocumentReader, object_detector: :ObjectDetector,
      image_segmenter: :ImageSegmenter, depth_estimator: :DepthEstimator,
      speech: :Transcriber, gliner: :GLiNER, gliclass: :GLiClass,
      audio_embedding: :AudioEmbeddingModel, audio_classifier: :AudioClassifier,
      voice_activity: :VoiceActivityDetector
    }.freeze

    # What models of each kind are called in messages.
    NAMES = {
      llm: "language model", embedding: "embedding model", reranker: "reranker", classifier: "text classifier",
      ner: "token classifier", masked_lm: "masked language model",
      question_answering: "question answering model", seq2seq: "sequence-to-sequence model",
      vlm: "vision-language model", clip: "model of texts and images", sparse: "sparse embedding model",
      late_interaction: "late-interaction model", image_embedding: "image embedding model",
      image_classifier: "image classifier", document_reader: "document reader", object_detector: "object detector",
      image_segmenter: "image segmenter", depth_estimator: "depth estimator", speech: "speech model",
      gliner: "GLiNER model",
      gliclass: "GLiClass model", audio_embedding: "audio embedding model",
      audio_classifier: "audio classifier", voice_activity: "voice activity detector"
    }.freeze

    # What the end of an architecture's name means; a sequence head is looked at more closely.
    HEADS = {
      /\A(Wav2Vec2(Bert)?|Hubert|WavLM)ForSequenceClassification\z|\AASTForAudioClassification\z/ => :audio_classifier,
      /\A(Wav2Vec2(Bert)?|Hubert|WavLM|AST|Clap)Model(WithProjection)?\z/ => :audio_embedding,
      /\A(Wav2Vec2(Bert)?|WavLM)ForXVector\z/ => :audio_embedding,
      /ForSequenceClassification\z/ => :sequence, /ForTokenClassification\z/ => :ner, /ForMaskedLM\z/ => :masked_lm,
      /ForQuestionAnswering(Simple)?\z/ => :question_answering,
      /\A(CLIP|Siglip2?|MetaClip2)Model\z/ => :clip, /ForImageClassification(WithTeacher)?\z/ => :image_classifier,
      /ForObjectDetection\z/ => :object_detector, /For(Semantic|Universal)Segmentation\z/ => :image_segmenter,
      /\A(VisionEncoderDecoderModel|(Florence2|Pix2Struct)ForConditionalGeneration)\z/ => :document_reader,
      /ForDepthEstimation\z/ => :depth_estimator, /\ASam(2|2Video)?Model\z/ => :image_segmenter,
      /\A(Swin(v2)?|Beit|Data2VecVision|DeiT|MobileNetV2|EfficientNet|DINOv3(ViT|ConvNext))Model\z/ => :image_embedding,
      /\A(Aimv2|CLIP|Siglip2?|MetaClip2)VisionModel\z/ => :image_embedding,
      /\A(ViT|Dinov2(WithRegisters)?|ResNet|ConvNext(V2)?)Model\z/ => :image_embedding,
      /\A(HF_ColBERT|ColIdefics3|Col(Pali|Qwen2|ModernVBert)ForRetrieval)\z/ => :late_interaction,
      /(ForCausalLM|LMHeadModel)\z/ => :llm, /\A(Whisper|Moonshine)ForConditionalGeneration\z|ForCTC\z/ => :speech,
      /(ForConditionalGeneration|MTModel|MarianModel)\z/ => :conditional, /Model\z/ => :embedding
    }.freeze

    # What `model_type` says, where the architecture's name does not.
    OWN_TYPES = { "model2vec" => :embedding, "GLiClass" => :gliclass, "extractor" => :gliner }.freeze

    # llama.cpp's number for the pooling of rerankers.
    RANK_POOLING = 4
    # GGUF architectures that read texts and write none.
    GGUF_ENCODERS = /bert|t5encoder/
    private_constant :NAMES, :HEADS, :OWN_TYPES, :RANK_POOLING, :GGUF_ENCODERS

    class << self
      # @param source [String, Pathname] a directory, a `.gguf` file or a Hugging Face id
      # @param revision [String, nil] a branch, tag or commit of the hub
      # @return [Symbol] one of the keys of {CLASSES}
      # @raise [UnsupportedModelError] when the files leave it open
      # @raise [ModelNotFoundError, DownloadError, OfflineError] when they can't be found or fetched
      def of(source, revision: nil)
        source = source.respond_to?(:to_path) ? source.to_path : source.to_s
        return of_gguf(source) if File.file?(source)

        read = SourceHints.explained(source) { reader(source, revision) }
        from_modules(read) || from_gliner(read) || from_config(read) || read.call(:gguf) ||
          raise(UnsupportedModelError, "the files of #{File.basename(source)} do not say what the model is for: " \
                                       "say it, as in NAME:embedding=SOURCE")
      end

      # @param source [String, Pathname] a directory or a Hugging Face id
      # @param revision [String, nil] a branch, tag or commit of the hub
      # @return [String, nil] the `model_type` of its `config.json`
      # @api private
      def model_type(source, revision: nil)
        source = source.respond_to?(:to_path) ? source.to_path : source.to_s
        return if File.file?(source)

        reader(source, revision).call("config.json")&.fetch("model_type", nil)
      end

      # @param model [Model]
      # @return [Symbol] the kind of a loaded model
      # @raise [ArgumentError] for what isn't a model
      def of_model(model)
        found = CLASSES.find { |_, name| Candle.const_defined?(name) && model.is_a?(Candle.const_get(name)) }
        found&.first || raise(ArgumentError, "expected a model or its source, not #{Arguments.shown(model)}")
      end

      # @param kind [Symbol, String]
      # @return [Class] the class that runs models of a kind
      # @raise [ArgumentError] for an unknown kind
      # @raise [UnsupportedModelError] for a kind that this version has no class for
      def class_for(kind)
        name = CLASSES.fetch(kind.to_sym) do
          raise ArgumentError, "unknown kind of model #{kind.to_s.inspect}; known are #{CLASSES.keys.join(", ")}"
        end
        return Candle.const_get(name) if Candle.const_defined?(name)

        raise UnsupportedModelError, "this version of red-candle does not run models of the kind #{kind}"
      end

      # @param source [String] a model that a class does not load
      # @param klass [Class] that class
      # @param revision [String, nil] a branch, tag or commit of the hub
      # @return [String, nil] which class to use; nil when it is that one, or when the files leave it open
      # @api private
      def advice(source, klass, revision: nil)
        kind = of(source, revision: revision)
        right = CLASSES.fetch(kind)
        return if klass.name == "Candle::#{right}"

        "#{File.basename(source)} is #{Arguments.one(NAMES.fetch(kind))}: use Candle::#{right}.from_pretrained"
      rescue Error
        nil
      end

      private

      # @return [Proc] reads a JSON file of the model by its name, nil where there is none; `:gguf` tells its GGUF file
      def reader(source, revision)
        return directory_reader(source) if File.directory?(source)

        (_, pack), = ModelGems.packs([source])
        return directory_reader(File.join(pack, "model")) if pack
        raise ModelNotFoundError, "there is no file or directory #{source}" if source.match?(%r{\A[/.~]|\.gguf\z})

        names = Hub.files(source, revision: revision)
        fetch = ->(name) { Hub.download(source, name, revision: revision) }
        lambda do |name|
          next of_ggufs(names) { |files| fetch.call(gguf_file(source, files, revision)) } if name == :gguf

          parsed(fetch.call(name), name) if names.include?(name)
        end
      end

      def directory_reader(directory)
        lambda do |name|
          next of_ggufs(Dir[File.join(directory, "*.gguf")], &:min) if name == :gguf

          path = File.join(directory, name)
          parsed(path, name) if File.file?(path)
        end
      end

      # A list of modules is the only file that is not an object.
      def parsed(path, name)
        found = JSON.parse(File.read(path))
        return found if found.is_a?(name == "modules.json" ? Array : Hash)

        raise CorruptModelError, "#{name} is not a JSON object"
      rescue JSON::ParserError
        raise CorruptModelError, "#{name} is not valid JSON"
      end

      # All GGUF files of a repository are of one kind, so that the block's choice tells it; a vision tower among them
      # makes language models see.
      def of_ggufs(names)
        towers, files = names.grep(/\.gguf\z/i).partition { |name| CheckpointFiles.tower?(name) }
        return if files.empty?

        kind = of_gguf(yield(files))
        kind == :llm && towers.any? ? :vlm : kind
      end

      # One that is there already costs nothing.
      def gguf_file(source, files, revision)
        files.find do |name|
          Hub.cached?(source, name, revision: revision)
        end || files.grep(/q4_k_m/i).first || files.first
      end

      def from_modules(read)
        modules = read.call("modules.json") or return
        case read.call("config_sentence_transformers.json")&.fetch("model_type", nil)
        when "CrossEncoder" then return :reranker
        when "SparseEncoder" then return :sparse
        when "ColBERT" then return :late_interaction
        end
        return :late_interaction if modules.to_s.include?("pylate.")

        modules.to_s.match?(/SpladePooling|sparse_encoder/) ? :sparse : :embedding
      end

      # Its own configuration stands beside none of transformers', or beside its encoder's.
      def from_gliner(read)
        :gliner if read.call("gliner_config.json")
      end

      def from_config(read)
        config = read.call("config.json") or return
        architecture = Array(config["architectures"]).first.to_s
        head = HEADS.find { |pattern, _| pattern.match?(architecture) }&.last
        case head
        when :sequence then labels(config) == 1 ? :reranker : :classifier
        when :conditional then config.key?("vision_config") ? :vlm : :seq2seq
        when nil, :embedding then OWN_TYPES.fetch(config["model_type"], head)
        else head
        end
      end

      def labels(config)
        labels = config["id2label"]
        config["num_labels"] || (labels.size if Hash === labels) || 2
      end

      def of_gguf(path)
        metadata = Weights.open(path).metadata
        architecture = metadata["general.architecture"].to_s
        pooling = metadata["#{architecture}.pooling_type"]
        return :reranker if pooling == RANK_POOLING
        return :seq2seq if architecture == "t5"
        return :speech if architecture == "whisper"
        if architecture == "clip"
          raise UnsupportedModelError, "#{File.basename(path)} is the vision tower of a model: name the language model"
        end

        return :embedding if architecture.match?(GGUF_ENCODERS) || pooling.to_i.positive?

        :llm
      end
    end
  end
end
