# frozen_string_literal: true

RSpec.describe Candle::MaskedLM do
  let(:model) { described_class.from_pretrained(TinyModels.path("bert-masked"), device: "cpu") }

  it "proposes tokens, best first", :gc_stress do
    found = model.fill("the [MASK] dog", top_k: 3)
    expect(found.map(&:keys)).to all(eq(%i[token id score sequence]))
    expect(found.first).to include(token: "paris", id: 27, sequence: "the paris dog")
    expect(found.map { |entry| entry[:score] }).to eq(found.map { |entry| entry[:score] }.sort.reverse)
    expect(model.fill("the [MASK] dog").size).to eq(5)
    expect(model.mask_token).to eq("[MASK]")
  end

  it "gives one list per gap, and one result per text" do
    gaps = model.fill("the [MASK] [MASK]", top_k: 2)
    expect(gaps.map(&:size)).to eq([2, 2])
    several = model.fill(["the [MASK] dog", "the [MASK] [MASK]"], top_k: 2)
    expect(several).to eq([model.fill("the [MASK] dog", top_k: 2), gaps])
  end

  it "refuses texts without a gap" do
    expect { model.fill("the dog") }.to raise_error(Candle::InvalidInputError, /no \[MASK\]/)
    expect { model.fill(nil) }.to raise_error(Candle::InvalidInputError, /nil/)
    expect { model.fill("[MASK]", top_k: nil) }.to raise_error(ArgumentError, /top_k/)
  end
end
