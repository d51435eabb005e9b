# frozen_string_literal: true

require "json"

RSpec.describe Candle::AudioClassifier do
  tones = File.expand_path("../fixtures/audio/tones.wav", __dir__)
  long = File.expand_path("../fixtures/audio/long.flac", __dir__)
  load = ->(name) { described_class.from_pretrained(TinyModels.path("speech/#{name}"), device: "cpu") }

  %w[wav2vec2-classifier wavlm-classifier wav2vec2-mixed].each do |name|
    it "gives the scores of transformers for #{name}" do
      expected = JSON.parse(File.read(File.join(TinyModels.path("speech/#{name}"), "expected.json")))
      model = load.call(name)
      { tones => "tones", long => "long" }.each do |audio, key|
        found = model.classify(audio).to_h { |entry| entry.values_at(:label, :score) }
        scores = model.labels.map { |label| found.fetch(label) }
        expect(scores.zip(expected.fetch(key)).map { |a, b| (a - b).abs }.max).to be < 1e-4
      end
      expect(model.labels).to eq(%w[yes no stop])
    end
  end

  it "takes every kind of audio, and several at once" do
    model = load.call("wav2vec2-classifier")
    alone = model.classify(tones)
    samples = Candle::Audio.open(tones).samples(as: :array)
    expect(model.classify([tones, File.binread(tones), long]).first(2)).to eq([alone] * 2)
    expect(model.classify(samples, sample_rate: 16_000)).to eq(alone)
    expect(model.classify(tones, top_k: 1)).to eq(alone.first(1))
    expect(model.classify([])).to eq([])
    expect(model.sample_rate).to eq(16_000)
    expect(model.warm_up).to be(model)
    expect(Candle::ModelKind.of(model.model_id)).to eq(:audio_classifier)
    expect(Candle.pipeline("audio-classification", model).call(tones, top_k: 2)).to eq(alone.first(2))
  end

  it "refuses what it can't do" do
    model = load.call("wav2vec2-classifier")
    expect { model.classify([0.1] * 5, sample_rate: 16_000) }.to raise_error(Candle::InvalidInputError, /too short/)
    expect { model.classify("none.wav") }.to raise_error(Candle::InvalidInputError, /none.wav/)
    expect { load.call("hubert") }.to raise_error(Candle::UnsupportedModelError, /Candle::Transcriber/)
    expect { load.call("hubert-embedding") }
      .to raise_error(Candle::UnsupportedModelError, /Candle::AudioEmbeddingModel.*no classifier/)
    expect { Candle::Transcriber.from_pretrained(TinyModels.path("speech/wav2vec2-classifier")) }
      .to raise_error(Candle::UnsupportedModelError, /Candle::AudioClassifier/)
  end
end

RSpec.describe Candle::AudioEmbeddingModel do
  tones = File.expand_path("../fixtures/audio/tones.wav", __dir__)
  loaded = nil
  let(:model) { loaded ||= described_class.from_pretrained(TinyModels.path("speech/hubert-embedding"), device: "cpu") }

  it "gives the mean of transformers' states" do
    expected = JSON.parse(File.read(File.join(TinyModels.path("speech/hubert-embedding"), "expected.json")))
    found = model.embed(tones, normalize: false)
    expect(found.zip(expected.fetch("mean")).map { |a, b| (a - b).abs }.max).to be < 1e-4
    length = Math.sqrt(found.sum { |value| value * value })
    unit = model.embed(tones)
    expect(unit.zip(found).map { |a, b| (a - (b / length)).abs }.max).to be < 1e-5
  end

  it "gives vectors in every form" do
    expect(model.embed([tones, tones], as: :tensor).shape).to eq([2, model.dimension])
    expect(model.embed(tones, as: :packed).unpack("e*").size).to eq(model.dimension)
    seen = []
    model.embed([tones, tones], progress: ->(done, total) { seen << [done, total] })
    expect(seen).to eq([[1, 2], [2, 2]])
    expect(Candle::ModelKind.of(model.model_id)).to eq(:audio_embedding)
    expect(Candle::DeviceUtils.supports_model?("cpu", :audio_embedding)).to be(true)
  end
end
