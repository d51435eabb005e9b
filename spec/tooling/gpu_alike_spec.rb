# frozen_string_literal: true

require_relative "../../bench/gpu/alike"
require_relative "../../bench/gpu/numbers"
require_relative "../../bench/gpu/pictures"

# What decides on a GPU whether two results of models of images are the same.
RSpec.describe GpuBench::Alike do
  def thing(label, score, *box) = { label: label, score: score, box: box }

  def mask(*pixels)
    instance_double(Candle::Image, prepared: [Candle::Tensor.new([pixels.each_slice(2).to_a] * 3, :f32)])
  end

  let(:things) do
    [thing("a", 0.9, 0.1, 0.1, 0.2, 0.2), thing("a", 0.5, 0.5, 0.5, 0.6, 0.7), thing("b", 0.4, 0, 0, 1, 1)]
  end

  it "finds the like of each thing wherever it stands" do
    expect(described_class.things(things.reverse, things)).to eq([0, 0, 0])
    moved = [thing("a", 0.9, 0.1, 0.1, 0.2, 0.3), *things.drop(1)]
    expect(described_class.things(moved, things)).to match([be_within(1e-9).of(0.1), 0, 0])
    twice = [things[0], things[0], things[2]]
    expect(described_class.things(twice, things)[1]).to be > 0.4
    expect(described_class.things([*things.first(2), thing("c", 0.4, 0, 0, 1, 1)], things)).to eq([0, 0, 1])
  end

  it "wants the things of a page in their order" do
    expect(described_class.things(things, things, ordered: true)).to eq([0, 0, 0])
    expect(described_class.things(things.values_at(1, 0, 2), things, ordered: true)).to include(be > 0.4)
  end

  it "lets nothing pass that is no number or is missing" do
    broken = [thing("a", Float::NAN, 0.1, 0.1, 0.2, 0.2), *things.drop(1)]
    [described_class.things(broken, things), described_class.things(things.first(2), things),
     [described_class.share([1], [1, 2])], [described_class.share([], [])],
     described_class.sorted([1.0, Float::NAN]), described_class.parts([1.0, Float::NAN]), described_class.parts([0.0]),
     described_class.masks([{ label: "a", mask: mask(1, 0) }], [])].each do |found|
      expect(GpuBench::Numbers.difference(found, found.map { 0.0 })).to be_nan
    end
  end

  it "counts what differs" do
    expect(described_class.share([1, 2, 3, 4], [1, 2, 3, 5])).to eq(0.25)
    expect(described_class.sorted([2.0, 1.0])).to eq([1.0, 2.0])
    expect(described_class.parts([1.0, -4.0])).to eq([0.25, -1.0])
    one = { label: "a", mask: mask(1, 0, 0, 1) }
    expect(described_class.masks([one], [{ label: "a", mask: mask(1, 1, 0, 1) }])).to eq([0.25])
    expect(described_class.masks([one], [{ label: "b", mask: mask(1, 0, 0, 1) }])).to match([be_nan])
    expect(described_class.labels([one, { label: "b", mask: mask(0, 1, 0, 0) }], %w[b a])).to eq([1, 0, nil, 1])
  end

  it "knows every fixture of images" do
    names = GpuBench::Pictures.names
    expect(names).to include("seeded_pictures/metaclip_2-pair", "seeded_readers/nougat", "seeded_vlms/qwen3_vl-video")
    require_relative "../../rakelib/support/metal/pictures"
    expect(Tasks::Metal::Pictures::FEW - names).to be_empty
  end
end
