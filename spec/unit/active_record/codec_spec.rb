# frozen_string_literal: true

RSpec.describe Candle::ActiveRecord::Codec do
  let(:values) { [0.5, -1.0, 0.25, -0.125, 1.0, 0.0, -0.75, 0.0625] }
  let(:packed) { values.pack("e*") }

  it "writes pgvector's binary format" do
    expect(described_class.encode(packed, :vector, :postgresql)).to eq([8, 0].pack("nn") + values.pack("g*"))
    expect(described_class.encode(packed, :halfvec, :postgresql))
      .to eq([8, 0, 0x3800, 0xbc00, 0x3400, 0xb000, 0x3c00, 0x0000, 0xba00, 0x2c00].pack("n*"))
    expect(described_class.encode(packed, :bit, :postgresql)).to eq("\0\0\0\b\xA9".b)
    expect(described_class.encode(packed, :int8, :postgresql).unpack("c*")).to eq([64, -127, 32, -16, 127, 0, -95, 8])
  end

  it "writes packed bytes for SQLite" do
    expect(described_class.encode(packed, :vector, :sqlite)).to eq(packed)
    expect(described_class.encode(packed, :bit, :sqlite)).to eq("\xA9".b)
  end

  it "reads what it writes" do
    %i[postgresql sqlite].each do |adapter|
      %i[vector halfvec].each do |type|
        expect(described_class.decode(described_class.encode(packed, type, adapter), type, adapter)).to eq(values)
      end
      expect(described_class.decode(described_class.encode(packed, :bit, adapter), :bit, adapter)).to eq("10101001")
    end
    twelve = ([1.0, -1.0] * 6).pack("e*")
    expect(described_class.decode(described_class.encode(twelve, :bit, :postgresql), :bit, :postgresql))
      .to eq("10" * 6)
  end

  it "agrees with the engine on signed bytes and bits" do
    model = Candle::EmbeddingModel.from_pretrained(TinyModels.path("bert-sentence"))
    vector = model.embed("the quick fox", as: :packed)
    expect(described_class.quantize(vector, :bit)).to eq(model.embed("the quick fox", as: :binary))
    expect(described_class.quantize(vector, :int8)).to eq(model.embed("the quick fox", as: :int8))
  end

  it "packs numbers, tensors and packed vectors alike" do
    given = [values, packed, Candle::Tensor.new(values, :f32), Candle::Tensor.new([values], :f32)]
    expect(given.map { |vector| described_class.pack(vector) }).to all(eq(packed))
    expect(described_class.pack([0, 0, 0])).to eq("\0" * 12)
    expect(described_class.encode("\0" * 12, :int8, :sqlite)).to eq("\0\0\0")
  end
end
