# frozen_string_literal: true

RSpec.describe Candle::DType do
  sizes = { u8: 1, u32: 4, i16: 2, i32: 4, i64: 8, bf16: 2, f16: 2, f32: 4, f64: 8 }

  it "knows every type and its size" do
    expect(described_class.all.to_h { |dtype| [dtype.to_sym, dtype.size_in_bytes] }).to eq(sizes)
    expect(described_class.all.select(&:float?).map(&:to_sym)).to eq(%i[bf16 f16 f32 f64])
  end

  it "parses names and itself" do
    expect(described_class.parse("F32").to_s).to eq("f32")
    expect(described_class.parse(:float16)).to eq(:f16)
    expect(described_class.parse(described_class.parse(:i64))).to eq("i64")
    expect { described_class.parse(:f12) }.to raise_error(Candle::InvalidInputError, /"f12".*u8, u32.*f64/)
    expect { described_class.parse(nil) }.to raise_error(Candle::InvalidInputError)
  end

  it "says in what a model computes" do
    { Candle::EmbeddingModel => "bert-sentence", Candle::LLM => "decoders/llama", Candle::CLIP => "clip",
      Candle::Seq2Seq => "seq2seq/t5" }.each do |klass, name|
      %i[u8 u32 i16 i32 i64 f64].each do |dtype|
        expect { klass.from_pretrained(TinyModels.path(name), dtype: dtype) }
          .to raise_error(Candle::InvalidInputError, /can't compute in #{dtype}.*f32, f16, bf16 or, on the CPU, int8/)
      end
    end
    expect { Candle::EmbeddingModel.from_pretrained(TinyModels.path("bert-sentence"), dtype: :int4) }
      .to raise_error(Candle::InvalidInputError, /"int4": models compute in f32, f16, bf16 or, on the CPU, int8/)
  end

  it "is equal to its name, and as a Hash key to its like" do
    f32 = described_class.parse(:f32)
    expect(f32).to eq(:f32).and eq("f32").and eq(described_class.parse("f32"))
    expect(f32).not_to eq(:f64)
    expect(f32).not_to eq(nil)
    expect(f32).not_to eql(:f32)
    others = [f32, Candle::Device.cpu, Candle::GenerationConfig.default]
    expect(others.map { |one| one.eql?(BasicObject.new) }).to all(be(false))
    expect({ f32 => 1 }[described_class.parse(:f32)]).to eq(1)
    expect(f32.inspect).to eq("#<Candle::DType f32>")
  end
end
