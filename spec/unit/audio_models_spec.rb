# frozen_string_literal: true

require "fileutils"
require "json"
require "tmpdir"

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

  it "gives the scores of transformers for an audio spectrogram transformer" do
    model = load.call("ast-classifier")
    expected = JSON.parse(File.read(File.join(TinyModels.path("speech/ast-classifier"), "expected.json")))
    [tones, long].each do |audio|
      found = model.classify(audio).to_h { |entry| entry.values_at(:label, :score) }
      scores = model.labels.map { |label| found.fetch(label) }
      expect(scores.zip(expected.fetch(File.basename(audio))).map { |a, b| (a - b).abs }.max).to be < 1e-4
    end
    expect(model.labels).to eq(%w[bell rain dog car])
    expect(Candle::ModelKind.of(model.model_id)).to eq(:audio_classifier)
    expect { model.classify([0.1] * 300, sample_rate: 16_000) }.to raise_error(Candle::InvalidInputError, /too short/)
    expect { Candle::Transcriber.from_pretrained(TinyModels.path("speech/ast-classifier")) }
      .to raise_error(Candle::UnsupportedModelError, /Candle::AudioClassifier/)
  end

  %w[hubert-classifier wav2vec2-bert-classifier].each do |name|
    it "gives the scores of transformers for #{name}" do
      model = load.call(name)
      TinyModels.record("speech/#{name}").each do |audio, expected|
        audio = File.expand_path("../fixtures/audio/#{audio}", __dir__)
        found = model.classify(audio).to_h { |entry| entry.values_at(:label, :score) }
        scores = found.values_at("yes", "no", "stop")
        expect(scores.zip(expected).map { |a, b| (a - b).abs }.max).to be < 1e-4
      end
      expect(Candle::ModelKind.of(model.model_id)).to eq(:audio_classifier)
    end
  end

  it "refuses heads that label no whole audio" do
    %w[wav2vec2-voices wavlm-voices wav2vec2-bert-voices].each do |name|
      expect do
        load.call(name)
      end.to raise_error(Candle::UnsupportedModelError, /tells voices apart.*AudioEmbeddingModel/)
    end
    expect { load.call("wav2vec2-frames") }.to raise_error(Candle::UnsupportedModelError, /labels every frame/)
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
  let(:tones) { tones }
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

  it "gives transformers' pooled state of an audio spectrogram transformer" do
    folder = TinyModels.path("speech/ast-embedding")
    expected = JSON.parse(File.read(File.join(folder, "expected.json")))
    model = described_class.from_pretrained(folder, device: "cpu")
    %w[tones.wav long.flac].each do |name|
      found = model.embed(File.expand_path("../fixtures/audio/#{name}", __dir__), normalize: false)
      expect(found.zip(expected.fetch(name)).map { |a, b| (a - b).abs }.max).to be < 1e-4
    end
    expect(Candle.supported_models.find { |known| known[:model_type] == "audio-spectrogram-transformer" }[:tasks])
      .to eq(%i[audio_embedding audio_classifier])
  end

  %w[wav2vec2-voices wavlm-voices wav2vec2-bert-voices].each do |name|
    it "gives the vectors of transformers that tell voices apart with #{name}" do
      model = described_class.from_pretrained(TinyModels.path("speech/#{name}"), device: "cpu")
      TinyModels.record("speech/#{name}").each do |audio, expected|
        found = model.embed(File.expand_path("../fixtures/audio/#{audio}", __dir__), normalize: false)
        expect(found.size).to eq(expected.size)
        expect(found.zip(expected).map { |a, b| (a - b).abs }.max).to be < 1e-4
      end
      expect(model.dimension).to eq(model.embed(tones).size)
      expect(model.warm_up).to be(model)
      expect(Candle::ModelKind.of(model.model_id)).to eq(:audio_embedding)
      expect { model.embed([0.1] * 400, sample_rate: 16_000) }.to raise_error(Candle::InvalidInputError, /too short/)
    end
  end

  %w[wav2vec2-adapter wavlm-adapter wav2vec2-bert-adapter wav2vec2-bert-masked].each do |name|
    it "gives the mean of transformers' states behind the adapter of #{name}" do
      folder = TinyModels.path("speech/#{name}")
      expected = TinyModels.record("speech/#{name}").fetch("mean")
      found = described_class.from_pretrained(folder, device: "cpu").embed(tones, normalize: false)
      expect(found.size).to eq(expected.size)
      expect(found.zip(expected).map { |a, b| (a - b).abs }.max).to be < 1e-4
    end
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

  %w[clap clap-plain].each do |name|
    describe name do
      record = TinyModels.record("speech/#{name}")
      let(:clap) { described_class.from_pretrained(TinyModels.path("speech/#{name}"), device: "cpu") }

      def difference(one, other)
        one.zip(other).map { |a, b| (a - b).abs }.max
      end

      it "gives transformers' vectors of audio and of texts" do
        record.fetch("audio").each do |file, expected|
          found = clap.embed(File.expand_path("../fixtures/audio/#{file}", __dir__))
          expect(difference(found, expected)).to be < 1e-4
        end
        found = clap.embed_text(record.fetch("texts"))
        expect(found.zip(record.fetch("text")).map { |one, other| difference(one, other) }.max).to be < 1e-4
        expect(clap.embed_text(record["texts"].first)).to eq(found.first)
      end

      it "judges which label fits as transformers does" do
        audios = record.fetch("matches").keys.map { |file| File.expand_path("../fixtures/audio/#{file}", __dir__) }
        lists = clap.classify_audio(audios, record.fetch("labels"))
        lists.zip(record["matches"].values).each do |list, expected|
          scores = list.to_h { |entry| entry.values_at(:label, :score) }.values_at(*record["labels"])
          expect(difference(scores, expected)).to be < 1e-4
          expect(list.map { |entry| entry[:score] }).to eq(list.map { |entry| entry[:score] }.sort.reverse)
        end
        expect(clap.classify_audio(audios.first, record["labels"]).size).to eq(3)
        pipeline = Candle.pipeline("zero-shot-audio-classification", clap)
        expect(pipeline.call(audios.first, record["labels"])).to eq(lists.first)
      end

      it "is a model like the others" do
        expect([clap.dimension, clap.sample_rate]).to eq([8, 16_000])
        expect(Candle::ModelKind.of(clap.model_id)).to eq(:audio_embedding)
        expect(clap.warm_up).to be(clap)
        unit = clap.embed_text("rain")
        free = clap.embed_text("rain", normalize: false)
        length = Math.sqrt(free.sum { |value| value * value })
        expect(difference(unit, free.map { |value| value / length })).to be < 1e-5
        both = clap.embed([tones, tones], as: :tensor)
        expect(both.shape).to eq([2, 8])
        expect { clap.classify_audio(tones, []) }.to raise_error(Candle::InvalidInputError, /label/)
        expect { clap.classify_audio(tones, ["a"], template: "x") }
          .to raise_error(Candle::InvalidInputError, /template/)
        expect { clap.embed_text(3) }.to raise_error(Candle::InvalidInputError)
      end
    end
  end

  it "says what a model of audio alone does not do, and what is wrong with a checkpoint" do
    expect { model.embed_text("rain") }.to raise_error(Candle::InvalidInputError, /CLAP/)
    expect { model.classify_audio(tones, ["rain"]) }.to raise_error(Candle::InvalidInputError, /CLAP/)
    changed = lambda do |file, settings|
      Dir.mktmpdir do |directory|
        FileUtils.cp_r(File.join(TinyModels.path("speech/clap-plain"), "."), directory)
        path = File.join(directory, file)
        File.write(path, JSON.generate(settings.call(JSON.parse(File.read(path)))))
        described_class.from_pretrained(directory, device: "cpu")
      end
    end
    inside = ->(changes) { ->(config) { config.merge("audio_config" => config["audio_config"].merge(changes)) } }
    expect { changed.call("preprocessor_config.json", ->(all) { all.merge("truncation" => "fusion") }) }
      .to raise_error(Candle::CorruptModelError, /enable_fusion/)
    expect { changed.call("preprocessor_config.json", ->(all) { all.merge("truncation" => "other") }) }
      .to raise_error(Candle::UnsupportedModelError, /other/)
    expect { changed.call("config.json", inside.call("num_mel_bins" => 24)) }
      .to raise_error(Candle::CorruptModelError, /num_mel_bins/)
    expect { changed.call("config.json", inside.call("depths" => [2, 2, 2])) }.to raise_error(Candle::CorruptModelError)
    expect { changed.call("config.json", inside.call("patch_embed_input_channels" => 2)) }
      .to raise_error(Candle::UnsupportedModelError, /patch_embed_input_channels/)
  end
end
