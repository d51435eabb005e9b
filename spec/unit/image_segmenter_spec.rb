# frozen_string_literal: true

require "json"

RSpec.describe Candle::ImageSegmenter do
  folder = TinyModels.path("segformer")
  photo = File.expand_path("../fixtures/images/photo.png", __dir__)
  expected = JSON.parse(File.read(File.join(folder, "expected.json"))).fetch("cases").first
  raw = { "do_resize" => false, "do_center_crop" => false, "do_normalize" => false, "do_rescale" => false }
  loaded = nil
  let(:segmenter) { loaded ||= described_class.from_pretrained(folder, device: "cpu") }

  it "finds what transformers finds" do
    wanted = expected.fetch("segmentation")
    found = segmenter.segment(photo)
    off = found.sum do |part|
      label = segmenter.labels.index(part[:label])
      white = part[:mask].prepared(raw).first.to_a.first.flatten.map { |value| value > 0.5 }
      white.zip(wanted).count { |marked, number| marked != (number == label) }
    end
    expect(off).to be <= wanted.size / 500
    expect(found.sum { |part| part[:score] }).to be_within(1e-9).of(1)
    expect(segmenter.segment([photo]).first.map { |part| part[:score] }).to eq(found.map { |part| part[:score] })
  end

  it "keeps what was asked for", :gc_stress do
    label = segmenter.segment(photo).last[:label]
    expect(segmenter.segment(photo, labels: label).map { |part| part[:label] }).to eq([label])
    expect(segmenter.warm_up).to be(segmenter)
    expect(Candle::ModelKind.of(folder)).to eq(:image_segmenter)
    expect { segmenter.segment(photo, labels: ["dragon"]) }.to raise_error(ArgumentError, /no label "dragon"/)
    expect { segmenter.segment([photo, nil]) }.to raise_error(Candle::InvalidInputError, /images\[1\]/)
    expect { described_class.from_pretrained(TinyModels.path("vit"), device: "cpu") }
      .to raise_error(Candle::UnsupportedModelError, /is not a segmenter/)
  end
end
