# frozen_string_literal: true

require "json"

RSpec.describe Candle::DepthEstimator do
  folder = TinyModels.path("depth_anything")
  images = File.expand_path("../fixtures/images", __dir__)
  expected = JSON.parse(File.read(File.join(folder, "expected.json"))).fetch("cases")
  raw = { "do_resize" => false, "do_center_crop" => false, "do_normalize" => false, "do_rescale" => false }
  loaded = nil
  let(:estimator) { loaded ||= described_class.from_pretrained(folder, device: "cpu") }

  it "measures what transformers measures" do
    pictures = expected.map { |entry| File.join(images, entry.fetch("picture")) }
    estimator.estimate(pictures).zip(expected) do |found, entry|
      numbers = found[:predicted_depth].to_a.flatten
      expect(found[:predicted_depth].shape).to eq(entry["size"].reverse)
      expect(numbers.each_slice(7).map(&:first)).to be_near(entry["logits"], 1e-4)
      least, most = numbers.minmax
      shades = found[:depth].prepared(raw).first.to_a.first.flatten
      wanted = numbers.map { |number| ((number - least) / (most - least) * 255).floor }
      expect(shades.zip(wanted).count { |one, other| (one - other).abs > 1 }).to eq(0)
      expect(found[:depth].size).to eq(entry["size"])
    end
  end

  it "runs as pipelines of its name" do
    photo = File.join(images, "photo.png")
    expect(Candle.pipeline("depth-estimation", folder).call(photo)[:depth].size).to eq([88, 66])
    found = Candle.pipeline("zero-shot-object-detection", TinyModels.path("owlvit")).call(photo, ["a tower"])
    expect(found.map { |thing| thing[:label] }.uniq).to eq(["a tower"])
    parts = Candle.pipeline("image-segmentation", TinyModels.path("segformer")).call(photo)
    expect(parts.first.keys).to eq(%i[label score mask])
  end

  it "takes one image or several", :gc_stress do
    photo = File.join(images, "photo.png")
    one, several = [photo, [photo]].map { |input| [estimator.estimate(input)].flatten.first[:predicted_depth].to_a }
    expect(one).to eq(several)
    expect(estimator.estimate([])).to eq([])
    expect(estimator.warm_up).to be(estimator)
    expect(Candle::ModelKind.of(folder)).to eq(:depth_estimator)
    expect { estimator.estimate([photo, nil]) }.to raise_error(Candle::InvalidInputError, /images\[1\]/)
    expect { described_class.from_pretrained(TinyModels.path("vit"), device: "cpu") }
      .to raise_error(Candle::UnsupportedModelError, /is not a depth estimator/)
  end
end
