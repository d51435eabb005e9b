# frozen_string_literal: true

require "tmpdir"

RSpec.describe Candle::ModelKind do
  {
    "bert" => :embedding, "bert-sentence" => :embedding, "model2vec" => :embedding, "static-embedding" => :embedding,
    "bert-reranker" => :reranker, "xlm-roberta-reranker" => :reranker, "bert-sequence" => :classifier,
    "bert-token" => :ner, "bert-masked" => :masked_lm, "decoders/llama" => :llm, "decoders/gpt2" => :llm,
    "splade" => :sparse, "splade-sum" => :sparse, "sparse-static" => :sparse, "sparse-router" => :sparse,
    "colbert" => :late_interaction, "colbert-stanford" => :late_interaction,
    "gguf-decoders/llama" => :llm, "gguf-bert" => :embedding, "seq2seq/t5" => :seq2seq,
    "seq2seq/marian" => :seq2seq, "bart-sequence" => :classifier, "gguf-seq2seq/t5-t5" => :seq2seq,
    "gguf-seq2seq/t5encoder-mt5" => :embedding, "t5-sentence" => :embedding, "gguf-qwen3-embedding" => :embedding,
    "clip" => :clip, "siglip2" => :clip, "vit" => :image_embedding, "dinov2-registers" => :image_embedding,
    "vit-classifier" => :image_classifier, "llava" => :vlm, "llava-next" => :vlm, "qwen2-vl" => :vlm,
    "qwen2.5-vl" => :vlm, "smolvlm" => :vlm, "gemma3-vision" => :vlm
  }.each do |name, kind|
    it "finds that #{name} is of the kind #{kind}" do
      expect(described_class.of(TinyModels.path(name))).to eq(kind)
    end
  end

  it "reads a single GGUF file" do
    expect(described_class.of(Dir[File.join(TinyModels.path("gguf-decoders/llama"), "*.gguf")].first)).to eq(:llm)
  end

  it "tells the kinds that no fixture has by their configuration" do
    { { architectures: ["T5ForConditionalGeneration"] } => :seq2seq, { architectures: ["CLIPModel"] } => :clip,
      { architectures: ["LlavaForConditionalGeneration"], vision_config: {} } => :vlm }.each do |config, kind|
      Dir.mktmpdir do |directory|
        File.write(File.join(directory, "config.json"), JSON.generate(config))
        expect(described_class.of(directory)).to eq(kind)
      end
    end
  end

  it "says what to do when the files leave it open" do
    Dir.mktmpdir do |directory|
      expect { described_class.of(directory) }.to raise_error(Candle::UnsupportedModelError, /NAME:embedding=SOURCE/)
      File.write(File.join(directory, "config.json"), "{")
      expect { described_class.of(directory) }
        .to raise_error(Candle::CorruptModelError, "config.json is not valid JSON")
      ['"text"', "[1]", "0.5"].each do |text|
        File.write(File.join(directory, "config.json"), text)
        expect { described_class.of(directory) }
          .to raise_error(Candle::CorruptModelError, "config.json is not a JSON object")
        expect { Candle::DocumentReader.from_pretrained(directory) }.to raise_error(Candle::Error)
      end
      config = { architectures: ["BertForSequenceClassification"], id2label: 0.5 }
      File.write(File.join(directory, "config.json"), JSON.generate(config))
      expect(described_class.of(directory)).to eq(:classifier)
    end
  end

  it "knows the class of each kind, and of a loaded model" do
    expect(described_class.class_for("ner")).to be(Candle::NER)
    expect(described_class.of_model(ServedModels.models["reranker"])).to eq(:reranker)
    expect { described_class.class_for(:poet) }.to raise_error(ArgumentError, /unknown kind of model "poet"; known are/)
    expect { described_class.of_model(7) }.to raise_error(ArgumentError, /a model or its source/)
  end
end
