# frozen_string_literal: true

require "fileutils"
require "json"
require "tmpdir"

# Damaged weights: a model that computes NaN says so, and nothing is sorted by it.
RSpec.describe "A model that computes what is no number" do
  nan = { "F32" => [Float::NAN].pack("e"), "F16" => "\x00\x7E".b }
  photo = File.expand_path("../fixtures/images/photo.png", __dir__)
  tones = File.expand_path("../fixtures/audio/tones.wav", __dir__)
  short = { max_length: 2 }.freeze
  told = [Candle::DeviceError, /computed values that aren't numbers \(NaN/]
  no_word = [Candle::GenerationError, /no usable logits \(all are NaN/]

  # A copy of a tiny model, the first number of one of its tensors being NaN.
  def damaged(name, tensor, nan)
    Dir.mktmpdir do |directory|
      FileUtils.cp_r("#{TinyModels.path(name)}/.", directory)
      path = File.join(directory, "model.safetensors")
      bytes = File.binread(path)
      header = JSON.parse(bytes[8, bytes.unpack1("Q<")])
      number = nan.fetch(header.dig(tensor, "dtype"))
      bytes[8 + bytes.unpack1("Q<") + header.dig(tensor, "data_offsets", 0), number.bytesize] = number
      File.binwrite(path, bytes)
      yield directory
    end
  end

  calls = [
    [:Classifier, "bert-sequence", "classifier.bias", told, ->(model) { model.classify("the fox") }],
    [:Reranker, "bert-reranker", "classifier.bias", told, ->(model) { model.rerank("the", %w[fox dog]) }],
    [:EmbeddingModel, "bert-sentence", "embeddings.LayerNorm.bias", told, ->(model) { model.embed("the fox") }],
    [:NER, "bert-token", "classifier.bias", told, ->(model) { model.extract_entities("the fox") }],
    [:QuestionAnswerer, "bert-question", "qa_outputs.bias", told, ->(model) { model.answer("who?", "the fox") }],
    [:GLiNER, "gliner", "prompt_rep_layer.3.bias", told, ->(model) { model.extract("the fox", labels: ["city"]) }],
    [:GLiNER, "gliner2", "count_pred.2.bias", told,
     ->(model) { model.extract("the fox", schema: { entities: ["city"] }) }],
    [:GLiNER, "gliner2", "classifier.2.bias", told, ->(model) { model.classify("the fox", labels: ["city"]) }],
    [:GLiClass, "gliclass", "model.text_projector.linear_2.bias", told,
     ->(model) { model.classify("the fox", labels: ["city"]) }],
    [:MaskedLM, "bert-masked", "cls.predictions.bias", told, ->(model) { model.fill("the [MASK]") }],
    [:SparseEmbeddingModel, "splade", "bert.embeddings.LayerNorm.bias", told, ->(model) { model.search("a", ["fox"]) }],
    [:LateInteractionModel, "colbert", "embeddings.LayerNorm.beta", told, ->(model) { model.score("a", ["fox"]) }],
    [:CLIP, "clip", "text_model.final_layer_norm.bias", told, ->(model) { model.embed_text("fox") }],
    [:CLIP, "clip", "vision_model.post_layernorm.bias", told, ->(model) { model.embed_image(photo) }],
    [:ImageClassifier, "vit-classifier", "classifier.bias", told, ->(model) { model.classify(photo) }],
    [:ImageEmbeddingModel, "dinov2", "layernorm.bias", told, ->(model) { model.embed(photo) }],
    [:ObjectDetector, "yolos", "class_labels_classifier.layers.2.bias", told, ->(model) { model.detect(photo) }],
    [:ImageSegmenter, "segformer", "decode_head.classifier.bias", told, ->(model) { model.segment(photo) }],
    [:DocumentReader, "trocr", "decoder.model.decoder.layernorm_embedding.bias", no_word, ->(it) { it.read(photo) }],
    [:DepthEstimator, "depth_anything", "head.conv3.bias", told, ->(model) { model.estimate(photo) }],
    [:LLM, "decoders/llama", "model.norm.weight", no_word, ->(model) { model.generate("the", **short) }],
    [:Seq2Seq, "seq2seq/t5", "decoder.final_layer_norm.weight", no_word, ->(model) { model.generate("a", **short) }],
    [:AudioClassifier, "speech/wav2vec2-classifier", "classifier.bias", told, ->(model) { model.classify(tones) }],
    [:AudioClassifier, "speech/ast-classifier", "classifier.dense.bias", told, ->(model) { model.classify(tones) }],
    [:AudioEmbeddingModel, "speech/hubert-embedding", "encoder.layer_norm.bias", told, ->(it) { it.embed(tones) }],
    [:AudioEmbeddingModel, "speech/clap", "audio_projection.linear2.bias", told, ->(it) { it.embed(tones) }],
    [:AudioEmbeddingModel, "speech/clap", "text_projection.linear2.bias", told, ->(it) { it.embed_text("fox") }],
    [:Transcriber, "speech/moonshine", "model.decoder.norm.weight", no_word, ->(it) { it.transcribe(tones) }],
    [:VoiceActivityDetector, "speech/silero", "final_conv.bias", told, ->(model) { model.detect(tones) }],
    [:Transcriber, "speech/whisper", "model.decoder.layer_norm.bias", no_word, ->(model) { model.transcribe(tones) }],
    [:VLM, "llava", "language_model.model.norm.weight", no_word, ->(model) { model.ask(photo, "fox", **short) }]
  ]

  calls.each do |type, name, tensor, error, call|
    it "is told by #{type}, of #{tensor}" do
      damaged(name, tensor, nan) do |directory|
        model = Candle.const_get(type).from_pretrained(directory, device: "cpu")
        expect { call.call(model) }.to raise_error(*error)
      end
    end
  end

  it "is told by every class that computes" do
    classes = Candle.constants.map { |name| Candle.const_get(name) }.grep(Class)
    models = classes.select { |type| type.respond_to?(:from_pretrained) } - [Candle::Tokenizer]
    expect(models).to match_array(calls.map { |type, *| Candle.const_get(type) }.uniq)
  end
end
