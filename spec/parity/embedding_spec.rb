# frozen_string_literal: true

# Vectors as transformers, sentence-transformers and model2vec compute them.
RSpec.describe Candle::EmbeddingModel do
  def load(name, **options)
    described_class.from_pretrained(TinyModels.path(name), device: "cpu", **options)
  end

  bare = %w[bert roberta xlm-roberta distilbert mpnet electra albert deberta deberta-v2 deberta-v2-conv nomic-bert gte
            gte-ntk jina-bert jina-bert-code modernbert qwen3-embedding mistral-embedding qwen2-embedding
            llama-embedding phi3-embedding]

  bare.each do |name|
    describe name do
      let(:model) { load(name) }
      let(:texts) { TinyModels.record(name)["texts"] }

      it "has the hidden states of the reference" do
        hidden = texts.flat_map { |text| model.embeddings(text).to_a.first }
        expect(hidden).to be_near(TinyModels.rows(name, "hidden"))
      end

      it "pools mixed lengths like the reference, alone as together" do
        %w[mean cls].each do |pooling|
          together = model.embed(texts, pooling: pooling, normalize: false)
          expect(together).to be_near(TinyModels.rows(name, pooling))
          alone = texts.map { |text| model.embed(text, pooling: pooling, normalize: false) }
          expect(alone).to be_near(together, 1e-5)
        end
      end
    end
  end

  describe "sentence-transformers' files" do
    let(:model) { load("bert-sentence") }
    let(:texts) { TinyModels.record("bert-sentence")["texts"] }

    it "gives pooling, normalization and maximum length" do
      expect(model.embed(texts)).to be_near(TinyModels.rows("bert-sentence", "default"))
      expect(model.max_length).to eq(16)
      expect(model.model_info).to include(pooling: ["mean"], normalize: true, dimensions: 32)
    end

    it "gives prompts by name, and takes others" do
      expect(model.prompts).to include("query" => "what is the ")
      expect(model.embed(texts, prompt_name: :query)).to be_near(TinyModels.rows("bert-sentence", "query"))
      expect(model.embed(texts, prompt: "so: ")).to be_near(TinyModels.rows("bert-sentence", "prompt"))
    end

    { "mean" => :mean, "cls" => :cls, "max" => :max, "lasttoken" => :last, "weightedmean" => :weighted_mean,
      "mean_sqrt_len_tokens" => :mean_sqrt_len }.each do |key, pooling|
      it "pools by #{pooling}" do
        found = model.embed(texts, pooling: pooling, normalize: false)
        expect(found).to be_near(TinyModels.rows("bert-sentence", key))
      end
    end

    it "gives a Dense module, several poolings at once and a default prompt" do
      dense = load("bert-sentence-dense")
      expect(dense.dimension).to eq(16)
      expect(dense.embed(texts)).to be_near(TinyModels.rows("bert-sentence-dense", "default"))
    end
  end

  it "embeds by T5's encoder as sentence-T5 and GTR do" do
    model = load("t5-sentence")
    texts = TinyModels.record("t5-sentence")["texts"]
    expect([model.dimension, model.max_length]).to eq([16, 24])
    expect(model.embed(texts)).to be_near(TinyModels.rows("t5-sentence", "default"))
    expect(load("gguf-seq2seq/t5encoder-mt5").embed(texts).first.size).to eq(32)
  end

  { "mistral-embedding" => "last", "qwen2-embedding" => "last", "llama-embedding" => "mean",
    "phi3-embedding" => "last", "gemma3-embedding" => "mean" }.each do |name, pooling|
    describe name do
      let(:model) { load(name) }
      let(:texts) { TinyModels.record(name)["texts"] }

      it "embeds as sentence-transformers does, with its pooling, Dense modules and prompts" do
        expect(model.model_info).to include(pooling: [pooling], max_length: TinyModels.record(name)["max_length"])
        expect(model.embed(texts)).to be_near(TinyModels.rows(name, "default"))
        expect(model.embed(texts, prompt_name: :query)).to be_near(TinyModels.rows(name, "query"))
      end

      it "gives a text the same vector alone as together" do
        together = model.embed(texts)
        expect(texts.map { |text| model.embed(text) }).to be_near(together, 1e-5)
      end

      it "describes itself, on a device that was checked" do
        checked = load(name, verify: true)
        expect(checked.model_info).to include(dimensions: model.embed("a").size, architecture: /Model\z/)
        expect(checked.model_info[:parameters]).to be > 5_000
        expect(checked.device_report).to include(actual: checked.device.to_s, dtype: "f32")
      end
    end
  end

  %w[model2vec static-embedding].each do |name|
    it "looks up the static embeddings of #{name}" do
      texts = TinyModels.record(name)["texts"]
      expect(load(name).embed(texts)).to be_near(TinyModels.rows(name, "default"))
    end
  end

  { "gguf-bert" => "bert", "gguf-jina-bert" => "jina-bert", "gguf-nomic-bert" => "nomic-bert",
    "gguf-qwen3-embedding" => "qwen3-embedding" }.each do |name, same|
    it "computes #{name} like its safetensors" do
      gguf = described_class.from_pretrained(File.join(TinyModels.path(name), "model.gguf"), device: "cpu")
      texts = TinyModels.record(same)["texts"]
      expect(gguf.embed(texts, pooling: :mean, normalize: false)).to be_near(TinyModels.rows(same, "mean"), 1e-3)
    end
  end

  it "computes the experts of a GGUF file of NomicBERT" do
    path = TinyModels.path("gguf-nomic-bert-moe")
    record = JSON.parse(File.read(File.join(path, "expected.json")))
    model = described_class.from_pretrained(File.join(path, "model.gguf"), device: "cpu")
    expect(model.embed(record["texts"], pooling: :mean, normalize: false)).to be_near(record["mean"], 1e-4)
    expect(model.model_info[:family]).to eq("nomic_bert_moe")
  end
end
