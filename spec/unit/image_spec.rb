# frozen_string_literal: true

require "pathname"
require "stringio"

RSpec.describe Candle::Image do
  let(:folder) { File.expand_path("../fixtures/images", __dir__) }
  let(:path) { File.join(folder, "photo.png") }
  let(:bytes) { File.binread(path) }

  it "reads a path, bytes and IOs", :gc_stress do
    [path, Pathname(path), bytes, bytes.dup.force_encoding("UTF-8"), StringIO.new(bytes)].each do |source|
      expect(described_class.open(source).size).to eq([88, 66])
    end
    File.open(path, "rb") { |file| expect(described_class.open(file).inspect).to eq("#<Candle::Image 88x66>") }
    image = described_class.open(path)
    expect(described_class.open(image)).to be(image)
  end

  it "reads every format" do
    %w[photo-420.jpg cmyk.jpg lossy.webp animated.gif palette.bmp deep-grey.png].each do |name|
      expect(described_class.open(File.join(folder, name)).width).to be_positive
    end
    expect(described_class.open(File.join(folder, "turned-6.jpg")).size).to eq([22, 29])
  end

  it "fetches nothing" do
    ["https://example.org/a.png", "HTTP://example.org/a.png", "file:///etc/passwd", "data:image/png;base64,AA"]
      .each do |address|
        expect { described_class.open(address) }.to raise_error(Candle::InvalidInputError, /is a URL. URLs are not/)
      end
  end

  it "says what can't be read" do
    expect { described_class.open("no/such.png") }.to raise_error(Candle::InvalidInputError, %r{no/such.png can't be})
    expect { described_class.open(nil) }.to raise_error(Candle::InvalidInputError, /not a NilClass/)
    expect { described_class.open("") }.to raise_error(Candle::InvalidInputError, /is empty/)
    expect { described_class.open(StringIO.new) }.to raise_error(Candle::InvalidInputError, /nothing left to read/)
    expect { described_class.open(bytes[0, 300]) }.to raise_error(Candle::InvalidInputError, /PNG image is damaged/)
    expect { described_class.open("\0\0".b * 40) }.to raise_error(Candle::InvalidInputError, /PNG, JPEG, WebP/)
    expect { described_class.open(__FILE__) }.to raise_error(Candle::InvalidInputError, /image_spec.rb: this is not/)
  end

  describe "limits" do
    around do |example|
      before = [described_class.max_pixels, described_class.max_bytes]
      example.run
    ensure
      described_class.max_pixels, described_class.max_bytes = before
    end

    it "refuses what is larger" do
      expect(described_class.max_pixels).to eq(100_000_000)
      expect(described_class.max_bytes).to eq(256 << 20)
      described_class.max_pixels = 5000
      expect { described_class.open(path) }.to raise_error(Candle::InvalidInputError, /limit of 5000 pixels/)
      described_class.max_pixels = 6000
      expect(described_class.open(path).size).to eq([88, 66])
      described_class.max_bytes = 100
      [path, bytes, StringIO.new(bytes)].each do |source|
        expect { described_class.open(source) }.to raise_error(Candle::InvalidInputError, /limit of 100 B/)
      end
      [0, -1, nil, 1.5].each { |bad| expect { described_class.max_pixels = bad }.to raise_error(ArgumentError) }
    end
  end
end
