# frozen_string_literal: true

require "fileutils"
require "json"
require "tmpdir"

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

  # Every two places of a window have a number, and maps are filled up to whole windows.
  it "refuses windows of many places" do
    { "mask2former" => [%w[backbone_config], "window_size", 65],
      "sam2" => [%w[vision_config backbone_config], "window_size_per_stage", [8, 65, 65, 65]] }
      .each do |name, (path, key, size)|
      Dir.mktmpdir do |copy|
        FileUtils.cp(Dir[File.join(TinyModels.path(name), "*.{json,safetensors}")], copy)
        config = JSON.parse(File.read(File.join(copy, "config.json")))
        config.dig(*path)[key] = size
        File.write(File.join(copy, "config.json"), JSON.generate(config))
        expect { described_class.from_pretrained(copy, device: "cpu") }
          .to raise_error(Candle::CorruptModelError, /config\.json.*#{key}/)
      end
    end
  end

  describe "with things of one label" do
    source = TinyModels.path("mask2former")
    masks = nil
    let(:universal) { masks ||= described_class.from_pretrained(source, device: "cpu") }
    let(:wanted) { JSON.parse(File.read(File.join(source, "expected.json"))).fetch("cases").first }

    def numbers(parts)
      parts.map { |part| [universal.labels.index(part[:label]), part[:score]] }
    end

    it "finds what transformers finds" do
      { instance: "things", panoptic: "parts" }.each do |kind, key|
        found = universal.segment(photo, kind: kind, threshold: 0.1)
        expected = wanted[key].sort_by { |_, score, _| -score }
        expect(numbers(found).flatten).to be_near(expected.flat_map { |label, score, _| [label, score] }, 1e-4)
        expect(universal.segment([photo, photo], kind: kind, threshold: 0.1).last.map { |part| part[:score] })
          .to eq(found.map { |part| part[:score] })
      end
      labels = universal.segment(photo).map { |part| universal.labels.index(part[:label]) }
      expect(labels.sort).to eq(wanted["segmentation"].uniq.sort)
    end

    it "says what it needs", :gc_stress do
      expect(universal.warm_up).to be(universal)
      expect(Candle::ModelKind.of(source)).to eq(:image_segmenter)
      merged = universal.segment(photo, kind: "panoptic", threshold: 0.1, merge: universal.labels)
      expect(merged.map { |part| part[:label] }.uniq.size).to eq(merged.size)
      expect { universal.segment(photo, kind: :all) }.to raise_error(ArgumentError, /kind must be one of/)
      expect { universal.segment(photo, merge: ["cat"]) }.to raise_error(ArgumentError, /merge: is for/)
      expect { universal.segment(photo, threshold: 2) }.to raise_error(ArgumentError, /threshold/)
      expect { segmenter.segment(photo, kind: :instance) }.to raise_error(ArgumentError, /labels pixels/)
    end
  end

  %w[sam sam2].each do |name|
    it "finds what #{name} of transformers finds" do
      source = TinyModels.path(name)
      prompted = described_class.from_pretrained(source, device: "cpu")
      JSON.parse(File.read(File.join(source, "expected.json"))).fetch("cases").each do |entry|
        image = File.expand_path("../fixtures/images/#{entry["picture"]}", __dir__)
        found = prompted.segment(image, points: entry["points"], boxes: entry["boxes"], multiple: entry["several"])
        wanted = entry["scores"].each_with_index.flat_map { |row, number| row.sort.reverse.map { |one| [number, one] } }
        expect(found.map { |one| one[:prompt] }).to eq(wanted.map(&:first))
        expect(found.map { |one| one[:score] }).to be_near(wanted.map(&:last), 1e-4)
        best = entry["masks"].first[entry["scores"].first.each_with_index.max[1]]
        pixels = found.first[:mask].prepared(raw).first.to_a.first.flatten
        # Run lengths, the first outside of the mask.
        inside = best.split.each_with_index.flat_map { |length, number| [number.odd?] * length.to_i }
        expect(pixels.zip(inside).count { |pixel, one| (pixel > 0.5) != one }).to be <= 6
      end
    end
  end

  describe "with points and boxes" do
    source = TinyModels.path("sam")
    sam = nil
    let(:prompted) { sam ||= described_class.from_pretrained(source, device: "cpu") }

    it "says what it needs", :gc_stress do
      expect(prompted.labels).to eq([])
      expect(prompted.warm_up).to be(prompted)
      expect(Candle::ModelKind.of(source)).to eq(:image_segmenter)
      box = { xmin: 5, ymin: 4, xmax: 50, ymax: 40 }
      expect(prompted.segment(photo, boxes: [box]).map { |one| one[:score] })
        .to eq(prompted.segment(photo, boxes: [box.values]).map { |one| one[:score] })
      expect { prompted.segment(photo) }.to raise_error(ArgumentError, /needs points: or boxes:/)
      expect { prompted.segment([photo], points: [[1, 2]]) }.to raise_error(ArgumentError, /of one image/)
      expect { prompted.segment(photo, points: [[1]]) }.to raise_error(ArgumentError, /a point must be/)
      expect { prompted.segment(photo, points: [[1, Float::NAN]]) }.to raise_error(ArgumentError, /a point must be/)
      expect { prompted.segment(photo, boxes: [[1, 2, 3]]) }.to raise_error(ArgumentError, /a box must have/)
      expect { prompted.segment(photo, points: [[1, 2]], boxes: [box, box]) }.to raise_error(ArgumentError, /one box/)
      expect { segmenter.segment(photo, points: [[1, 2]]) }.to raise_error(ArgumentError, /takes no points/)
    end
  end
end
