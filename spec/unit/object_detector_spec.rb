# frozen_string_literal: true

require "json"
require "tmpdir"

RSpec.describe Candle::ObjectDetector do
  folder = TinyModels.path("yolos")
  images = File.expand_path("../fixtures/images", __dir__)
  expected = JSON.parse(File.read(File.join(folder, "expected.json")))
  loaded = nil
  let(:detector) { loaded ||= described_class.from_pretrained(folder, device: "cpu") }

  it "finds what transformers finds" do
    pictures = expected.fetch("cases").map { |entry| File.join(images, entry.fetch("picture")) }
    lists = detector.detect(pictures, threshold: expected.fetch("threshold"))
    expected.fetch("cases").zip(lists) do |entry, found|
      expect(found.map { |thing| thing[:label] }).to eq(entry["things"].map { |label,| detector.labels[label] })
      expect(found.map { |thing| thing[:score] }).to be_near(entry["things"].map { |thing| thing[1] }, 1e-4)
      boxes = found.map { |thing| thing[:box].values }
      expect(boxes).to be_near(entry["things"].map(&:last), 1e-1)
    end
    expect(detector.detect(pictures.first, threshold: expected.fetch("threshold"))).to eq(lists.first)
  end

  it "keeps what was asked for", :gc_stress do
    photo = File.join(images, "photo.png")
    all = detector.detect(photo, threshold: 0.05)
    label = all.last[:label]
    expect(detector.detect(photo, threshold: 0.05, labels: [label])).to eq(all.select { |one| one[:label] == label })
    expect(detector.detect(photo, threshold: 1)).to eq([])
    expect(detector.detect([])).to eq([])
    expect(detector.warm_up).to be(detector)
    expect(detector.tokenizer).to be_nil
    expect { detector.detect(photo, labels: ["dragon"]) }.to raise_error(ArgumentError, /no label "dragon"/)
    expect { detector.detect(photo, threshold: 2) }.to raise_error(ArgumentError, /threshold/)
    expect { detector.detect([photo, "no image\0"]) }.to raise_error(Candle::InvalidInputError, /index 1/)
  end

  it "says what it is" do
    expect(detector.model_info).to include(family: "yolos", architecture: "YolosForObjectDetection")
    expect(Candle::ModelKind.of(folder)).to eq(:object_detector)
    expect { described_class.from_pretrained(TinyModels.path("bert"), device: "cpu") }
      .to raise_error(Candle::UnsupportedModelError, /is not a detector/)
  end

  it "finds what labels name" do
    source = TinyModels.path("owlvit")
    wanted = JSON.parse(File.read(File.join(source, "expected.json")))
    labels, threshold = wanted.values_at("labels", "threshold")
    open = described_class.from_pretrained(source, device: "cpu")
    wanted.fetch("cases").each do |entry|
      found = open.detect(File.join(images, entry.fetch("picture")), labels: labels, threshold: threshold)
      expect(found.map { |thing| thing[:label] }).to eq(entry["things"].map { |label,| labels[label] })
      expect(found.map { |thing| thing[:box].values }).to be_near(entry["things"].map(&:last), 1e-1)
    end
    expect(open.labels).to eq([])
    expect(open.warm_up).to be(open)
    expect do
      open.detect(File.join(images, "photo.png"))
    end.to raise_error(ArgumentError, /needs labels: with at least one label/)
    expect { open.detect(File.join(images, "photo.png"), labels: []) }.to raise_error(Candle::InvalidInputError)
  end

  it "finds what one text of all labels names", :gc_stress do
    source = TinyModels.path("grounding-dino")
    wanted = JSON.parse(File.read(File.join(source, "expected.json")))
    labels, threshold = wanted.values_at("labels", "threshold")
    grounded = described_class.from_pretrained(source, device: "cpu")
    files = wanted.fetch("cases").map { |entry| File.join(images, entry.fetch("picture")) }
    together = grounded.detect(files, labels: labels, threshold: threshold)
    wanted.fetch("cases").zip(files, together) do |entry, file, found|
      expect(found.map { |thing| thing[:label] }).to eq(entry["things"].map { |label,| labels[label] })
      expect(found.map { |thing| thing[:score] }).to be_near(entry["things"].map { |thing| thing[1] }, 1e-4)
      expect(found.map { |thing| thing[:box].values }).to be_near(entry["things"].map(&:last), 1e-1)
      expect(grounded.detect(file, labels: labels, threshold: threshold)).to eq(found)
    end
    expect(Candle::ModelKind.of(source)).to eq(:object_detector)
    expect { grounded.detect(files.first, labels: ["dog"] * 40 + ("a".."z").to_a) }
      .to raise_error(Candle::InvalidInputError, /more than the 32 tokens/)
  end

  it "draws and saves" do
    image = Candle::Image.open(File.join(images, "photo.png"))
    box = { xmin: 2, ymin: 3, xmax: 20, ymax: 30 }
    drawn = image.draw_boxes([{ label: "a", box: box }, { "xmin" => 0, "ymin" => 0, "xmax" => 9, "ymax" => 9 }],
                             color: [1, 2, 3], width: 2)
    raw = { "do_resize" => false, "do_center_crop" => false, "do_normalize" => false, "do_rescale" => false }
    pixels = drawn.prepared(raw).first.to_a.map { |plane| plane[3][2].round }
    expect(pixels).to eq([1, 2, 3])
    Dir.mktmpdir do |directory|
      path = File.join(directory, "drawn.png")
      expect(drawn.save(path)).to be(drawn)
      expect(Candle::Image.open(path).prepared(raw).first.to_a).to eq(drawn.prepared(raw).first.to_a)
      expect { drawn.save(File.join(directory, "drawn.gif")) }.to raise_error(ArgumentError, /\.png/)
    end
    expect { image.draw_boxes([5]) }.to raise_error(ArgumentError, /Hash/)
    expect { image.draw_boxes([box], color: "red") }.to raise_error(ArgumentError, /color/)
    expect { image.draw_boxes([{ xmin: 1 }]) }.to raise_error(Candle::InvalidInputError, /ymin/)
  end
end
