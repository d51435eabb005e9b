# frozen_string_literal: true

require "fileutils"
require "json"
require "tmpdir"

RSpec.describe Candle::VoiceActivityDetector do
  folder = TinyModels.path("speech/silero")
  tones = File.expand_path("../fixtures/audio/tones.wav", __dir__)
  long = File.expand_path("../fixtures/audio/long.flac", __dir__)
  loaded = nil
  let(:detector) { loaded ||= described_class.from_pretrained(folder, device: "cpu") }

  it "gives the probabilities of the reference" do
    expected = JSON.parse(File.read(File.join(folder, "expected.json"))).fetch("probabilities")
    found = detector.probabilities(tones)
    expect(found.size).to eq(expected.size)
    expect(found.zip(expected).map { |a, b| (a - b).abs }.max).to be < 1e-5
    samples = Candle::Audio.open(tones).samples(as: :array)
    expect(detector.probabilities(samples, sample_rate: 16_000)).to eq(found)
    expect([detector.step, detector.sample_rate]).to eq([0.002, 16_000])
  end

  it "finds where speech begins and ends" do
    exact = { min_speech: 0, min_silence: 0, padding: 0 }
    expect(detector.detect(tones, threshold: 0.0, **exact)).to eq([{ start: 0.0, end: 0.8 }])
    expect(detector.detect(tones, threshold: 1.0)).to eq([])
    threshold = 0.55
    inside = false
    speaking = detector.probabilities(tones).map do |probability|
      inside = probability >= threshold || (inside && probability >= threshold - 0.15)
    end
    runs = speaking.each_with_index.slice_when { |(a, _), (b, _)| a != b }.select { |run| run.first.first }
    wanted = runs.map { |run| { start: run.first.last * 0.002, end: [(run.last.last + 1) * 0.002, 0.8].min } }
    found = detector.detect(tones, threshold: threshold, **exact)
    expect(wanted).not_to be_empty
    expect(found.map { |span| span.transform_values { |value| value.round(4) } })
      .to eq(wanted.map { |span| span.transform_values { |value| value.round(4) } })
    wider = detector.detect(tones, threshold: threshold, **exact, padding: 0.001)
    expect(wider.sum { |span| span[:end] - span[:start] }).to be > found.sum { |span| span[:end] - span[:start] }
  end

  it "leaves out what nobody says" do
    model = Candle::Transcriber.from_pretrained(TinyModels.path("speech/whisper"), device: "cpu")
    options = { language: "en", temperature: 0, no_speech_threshold: nil }
    spans = detector.detect(long)
    parts = [[spans.first[:start], spans.last[:end]]]
    audio = Candle::Audio.open(long)
    alone = parts.map { |from, to| model.transcribe(audio.slice(from, to), **options) }
    seen = []
    result = model.transcribe(long, vad: detector, **options) { |segment| seen << segment }
    expect(result.token_ids).to eq(alone.flat_map(&:token_ids))
    expect(result.duration).to be_within(1e-9).of(audio.duration)
    expect(seen).to eq(result.segments)
    shifted = alone.flat_map(&:segments).map { |segment| segment[:start] + spans.first[:start] }
    expect(result.segments.map { |segment| segment[:start] }).to eq(shifted)
    expect(model.transcribe([long, tones], vad: detector, **options).first).to eq(result)
    expect { model.transcribe(long, vad: "silero") }.to raise_error(ArgumentError, /VoiceActivityDetector/)
  end

  it "reads the file that the Python package has, and refuses others" do
    Dir.mktmpdir do |directory|
      FileUtils.cp(File.join(folder, "model.safetensors"), File.join(directory, "silero_vad_16k.safetensors"))
      expect(described_class.from_pretrained(directory).probabilities(tones)).to eq(detector.probabilities(tones))
    end
    expect { described_class.from_pretrained(TinyModels.path("bert")) }
      .to raise_error(Candle::Error, /Silero|Candle::EmbeddingModel/)
    expect { detector.detect([tones, tones]) }.to raise_error(Candle::InvalidInputError, /one audio/)
    expect { detector.detect(tones, threshold: 2) }.to raise_error(ArgumentError, /threshold/)
    expect { detector.detect(tones, padding: -1) }.to raise_error(ArgumentError, /padding/)
    expect(Candle::DeviceUtils.supports_model?("cpu", :voice_activity)).to be(true)
    expect(detector.warm_up).to be(detector)
  end
end
