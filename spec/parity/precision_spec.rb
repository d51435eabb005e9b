# frozen_string_literal: true

# bf16, f16 and int8 on the CPU, beside the f32 reference.
RSpec.describe Candle::EmbeddingModel do
  def load(path, **options)
    described_class.from_pretrained(path, device: "cpu", **options)
  end

  def cosine(one, other)
    one.zip(other).sum { |a, b| a * b } / Math.sqrt(one.sum { |a| a * a } * other.sum { |b| b * b })
  end

  def worst_cosine(vectors, others)
    vectors.zip(others).map { |vector, other| cosine(vector, other) }.min
  end

  families = %w[bert roberta xlm-roberta distilbert mpnet electra albert deberta deberta-v2 deberta-v2-conv nomic-bert
                gte gte-ntk jina-bert jina-bert-code modernbert qwen3-embedding mistral-embedding]

  families.each do |name|
    it "computes #{name} in bf16, f16 and int8 near the reference, alone as together" do
      texts = TinyModels.record(name)["texts"]
      { bf16: 0.999, f16: 0.9999, int8: 0.99 }.each do |dtype, least|
        model = load(TinyModels.path(name), dtype: dtype)
        together = model.embed(texts, pooling: :mean, normalize: false)
        expect(worst_cosine(together, TinyModels.rows(name, "mean"))).to be >= least
        alone = texts.map { |text| model.embed(text, pooling: :mean, normalize: false) }
        expect(alone).to be_near(together, 1e-5)
      end
    end
  end

  it "says what it computes in" do
    model = load(TinyModels.path("bert"), dtype: :int8)
    expect(model.dtype).to eq(:int8)
    expect(model.device_report).to include(dtype: "int8", actual: "cpu")
    expect(model.inspect).to include(" int8 on cpu")
    expect(model.options[:dtype]).to eq("int8")
    expect(model.dtype.size_in_bytes).to eq(1)
    expect(load(TinyModels.path("bert"), dtype: model.dtype).dtype).to eq(:int8)
  end

  it "takes int8 in every class of encoders and in none of tensors or language models" do
    { Candle::Reranker => "reranker", Candle::Classifier => "sequence", Candle::NER => "token",
      Candle::MaskedLM => "masked" }.each do |klass, head|
      expect(klass.from_pretrained(TinyModels.path("bert-#{head}"), device: "cpu", dtype: :int8).dtype).to eq(:int8)
    end
    expect { Candle::Tensor.new([1, 2], :int8) }.to raise_error(Candle::InvalidInputError, /not of tensors/)
    llama = TinyModels.path("decoders/llama")
    expect { Candle::LLM.from_pretrained(llama, dtype: :int8) }.to raise_error(Candle::InvalidInputError, /int8.*Q8_0/)
  end

  describe "all-MiniLM-L6-v2" do
    include_context "with the real model", "sentence-transformers/all-MiniLM-L6-v2"

    let(:texts) do
      words = %w[retrieval of passages by meaning is what vectors are for while a longer text takes more than one line]
      Array.new(24) { |i| words.rotate(i).cycle.first(3 + (i * 5)).join(" ") }
    end

    it "keeps its vectors in bf16, f16 and int8" do
      expected = load(real_path).embed(texts)
      { bf16: 0.9995, f16: 0.9999, int8: 0.99 }.each do |dtype, least|
        expect(worst_cosine(load(real_path, dtype: dtype).embed(texts), expected)).to be >= least
      end
    end

    it "computes in f32 what CANDLE_F32=exact computes, on processors with tiles too" do
      script = <<~RUBY
        model = Candle::EmbeddingModel.from_pretrained(#{real_path.dump}, device: "cpu")
        print model.embed(#{texts.inspect}).flatten.pack("e*")
      RUBY
      usual, exact = [nil, "exact"].map { |setting| run_ruby(script, { "CANDLE_F32" => setting }).first.unpack("e*") }
      expect(exact.size).to eq(texts.size * 384)
      moved = Math.sqrt(usual.zip(exact).sum { |a, b| (a - b)**2 } / exact.sum { |a| a**2 })
      expect(moved).to be < 2e-6
    end

    it "gives a text the same vector in any batch" do
      %i[bf16 int8].each do |dtype|
        model = load(real_path, dtype: dtype)
        together = model.embed(texts)
        [0, 7, 23].each { |at| expect(model.embed(texts[at])).to be_near(together[at], 1e-5) }
      end
    end
  end
end
