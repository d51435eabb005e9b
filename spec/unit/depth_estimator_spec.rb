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

  it "takes one image or several", :gc_stress do
    photo = File.join(images, "photo.png")
    expect(estimator.estimate(photo)[:predicted_depth].to_a).to eq(estimator.estimate([photo]).first[:predicted_depth].to_a)
    expect(estimator.estimate([])).to eq([])
    expect(estimator.warm_up).to be(estimator)
    expect(Candle::ModelKind.of(folder)).to eq(:depth_estimator)
    expect { estimator.estimate([photo, nil]) }.to raise_error(Candle::InvalidInputError, /images\[1\]/)
    expect { described_class.from_pretrained(TinyModels.path("vit"), device: "cpu") }
      .to raise_error(Candle::UnsupportedModelError, /is not a depth estimator/)
  end
end
