# frozen_string_literal: true

require "json"
require "pathname"
require "stringio"

RSpec.describe Candle::Audio do
  let(:folder) { File.expand_path("../fixtures/audio", __dir__) }
  let(:path) { File.join(folder, "tones.wav") }
  let(:bytes) { File.binread(path) }

  def file(name)
    described_class.open(File.join(folder, name))
  end

  it "reads a path, bytes, IOs and samples", :gc_stress do
    [path, Pathname(path), bytes, bytes.dup.force_encoding("UTF-8"), StringIO.new(bytes)].each do |source|
      audio = described_class.open(source)
      expect([audio.sample_rate, audio.channels, audio.duration]).to eq([16_000, 1, 0.8])
    end
    audio = described_class.open(path)
    expect(described_class.open(audio)).to be(audio)
    expect(audio.inspect).to eq("#<Candle::Audio 0.80 s at 16000 Hz>")
    packed = audio.samples(as: :packed)
    expect(audio.samples(as: :array)).to eq(packed.unpack("e*"))
    [packed, packed.unpack("e*")].each do |samples|
      expect(described_class.open(samples, sample_rate: 16_000).samples(as: :packed)).to eq(packed)
    end
  end

  it "gives the samples of a 16-bit WAV exactly" do
    expected = bytes[44..].unpack("s<*").map { |value| value / 32_768.0 }
    expect(described_class.open(path).samples(as: :array)).to eq(expected)
    expect(described_class.open(path).samples.shape).to eq([12_800])
  end

  # How far the formats that lose something may be from the original.
  { "float.wav" => 0.0, "pcm32.wav" => 1e-6, "pcm24.wav" => 1e-6, "pcm8.wav" => 0.01, "ulaw.wav" => 0.03,
    "ima.wav" => 0.25, "ms.wav" => 0.25, "short.flac" => 0.0, "short.ogg" => 0.3 }.each do |name, most|
    it "reads #{name}" do
      wanted = described_class.open(path).samples(as: :array).first(4000)
      found = file(name).samples(as: :array)
      expect(found.size).to be_between(4000, 4100)
      expect(found.zip(wanted).first(4000).map { |a, b| (a - b).abs }.max).to be <= most
    end
  end

  it "reads MP3, M4A and MKV" do
    %w[short.mp3 short.m4a short.mkv].each do |name|
      audio = file(name)
      expect(audio.sample_rate).to eq(16_000)
      expect(audio.duration).to be_within(0.15).of(0.25)
      expect(audio.samples(as: :array).map(&:abs).max).to be_between(0.2, 1.5)
    end
  end

  JSON.parse(File.read(File.expand_path("../fixtures/audio/resampled.json", __dir__))).each do |rate, expected|
    it "resamples from #{rate} Hz as torchaudio does" do
      rate = rate.to_i
      # A sweep over all frequencies.
      samples = Array.new(rate / 5) { |at| (((at * at * 37) % 65_536) - 32_768) / 65_536.0 }
      audio = described_class.open(samples, sample_rate: rate).resample(16_000)
      found = audio.samples(as: :array)
      expect(found.size).to eq(expected["count"])
      wanted = expected["samples"]
      expect(wanted.each_with_index.map { |value, at| (found[at * 11] - value).abs }.max).to be < 1e-5
      model = Candle::Transcriber.from_pretrained(TinyModels.path("speech/whisper"), device: "cpu")
      rows = model.features(audio).to_a.values_at(*expected["frames"])
      expect(rows.zip(expected["features"]).flat_map { |a, b| a.zip(b).map { |x, y| (x - y).abs } }.max).to be < 1e-4
    end
  end

  it "decodes Opus as libopus does" do
    JSON.parse(File.read(File.join(folder, "opus.json"))).each do |name, expected|
      audio = file(name)
      expect([name, audio.sample_rate, audio.channels]).to eq([name, 48_000, expected["channels"]])
      found = audio.samples(as: :array)
      expect(found.size).to be_within(480).of(expected["count"]), name
      differences = found.each_slice(97).map(&:first).zip(expected["samples"]).map { |a, b| (a - b.to_f).abs }
      expect(differences.first(expected["samples"].size).max).to be < 1e-4, name
    end
    expect(described_class.open(File.binread(File.join(folder, "speech.webm"))).resample(16_000).duration)
      .to be_within(0.01).of(0.25)
  end

  it "mixes channels down" do
    mono = described_class.open(path).samples(as: :array).first(4000)
    stereo = file("stereo.wav")
    expect(stereo.channels).to eq(2)
    differences = stereo.samples(as: :array).zip(mono).map { |mixed, one| (mixed - (0.25 * one)).abs }
    expect(differences.max).to be < 1e-4
    both = described_class.open([0.5, -0.5, 1.0, 0.0], sample_rate: 8000, channels: 2)
    expect(both.samples(as: :array)).to eq([0.0, 0.5])
  end

  it "resamples tones without changing them" do
    slow = file("slow.wav")
    fast = slow.resample(16_000)
    expect([fast.sample_rate, fast.duration]).to eq([16_000, 0.25])
    tone = Array.new(4410) { |at| Math.sin(at / 44_100.0 * 2 * Math::PI * 440) }
    found = described_class.open(tone, sample_rate: 44_100).resample(16_000).samples(as: :array)
    wanted = Array.new(1600) { |at| Math.sin(at / 16_000.0 * 2 * Math::PI * 440) }
    expect(found.size).to eq(1600)
    expect((500..1100).map { |at| (found[at] - wanted[at]).abs }.max).to be < 1e-3
  end

  it "says what it can't read" do
    damaged = File.binread(File.join(folder, "opus.ogg")).sub("OpusHead\x01\x01".b, "OpusHead\x01\x00".b)
    expect { described_class.open(damaged) }.to raise_error(Candle::InvalidInputError, /can't be decoded/)
    expect { described_class.open("no such file") }.to raise_error(Candle::InvalidInputError, /can't be read/)
    expect { described_class.open("") }.to raise_error(Candle::InvalidInputError, /can't be decoded/)
    expect { described_class.open([0.0]) }.to raise_error(Candle::InvalidInputError, /sample_rate/)
    expect { described_class.open([0.0, nil], sample_rate: 1) }.to raise_error(Candle::InvalidInputError, /\[1\]/)
    expect { described_class.open([Float::NAN], sample_rate: 1) }.to raise_error(Candle::InvalidInputError, /NaN/)
    expect { described_class.open("https://example.org/a.mp3") }
      .to raise_error(Candle::InvalidInputError, /is a URL. URLs are not fetched/)
    expect { described_class.open(3) }.to raise_error(Candle::InvalidInputError, /not a Integer|not an Integer/)
    expect { file("slow.wav").resample(0) }.to raise_error(ArgumentError, /rate/)
    expect { file("slow.wav").samples(as: :pcm) }.to raise_error(ArgumentError, /:tensor/)
  end

  it "keeps limits" do
    seconds = described_class.max_seconds
    size = described_class.max_bytes
    described_class.max_bytes = 100
    expect { described_class.open(path) }.to raise_error(Candle::InvalidInputError, /max_bytes/)
    described_class.max_bytes = size
    described_class.max_seconds = 1
    long = described_class.open(Array.new(100, 0.0), sample_rate: 10)
    expect(long.duration).to eq(10.0)
    wav = bytes.byteslice(0, 24) + [1000].pack("V") + bytes.byteslice(28..)
    expect { described_class.open(wav) }.to raise_error(Candle::InvalidInputError, /max_seconds/)
  ensure
    described_class.max_bytes = size
    described_class.max_seconds = seconds
  end

  it "survives damaged files" do
    random = Random.new(7)
    Dir[File.join(folder, "*")].sort.each do |name|
      whole = File.binread(name)
      40.times do
        damaged = whole.dup
        random.rand(1..8).times { damaged.setbyte(random.rand([whole.bytesize, 200].min), random.rand(256)) }
        damaged = damaged.byteslice(0, random.rand(4..whole.bytesize)) if random.rand < 0.3
        begin
          described_class.open(StringIO.new(damaged)).duration
        rescue Candle::InvalidInputError, Candle::OutOfMemoryError => e
          expect(e.message).not_to be_empty
        end
      end
    end
  end
end
