# frozen_string_literal: true

require "fileutils"
require "json"
require "stringio"
require "timeout"
require "tmpdir"

RSpec.describe Candle::Transcriber do
  folder = TinyModels.path("speech")
  wav = File.expand_path("../fixtures/audio/tones.wav", __dir__)

  def self.expected(folder, name)
    JSON.parse(File.read(File.join(folder, name, "expected.json")))
  end

  def load(name, **options)
    described_class.from_pretrained(TinyModels.path("speech/#{name}"), device: "cpu", **options)
  end

  # A model whose generation_config.json says something else.
  def with_settings(name, settings)
    Dir.mktmpdir do |directory|
      FileUtils.cp_r(File.join(TinyModels.path("speech"), name, "."), directory)
      path = File.join(directory, "generation_config.json")
      File.write(path, JSON.generate(JSON.parse(File.read(path)).merge(settings)))
      yield described_class.from_pretrained(directory, device: "cpu")
    end
  end

  let(:wav) { wav }
  let(:whisper) { load("whisper") }
  # Longer than the window of the models, which is one second.
  let(:long) { File.expand_path("../fixtures/audio/long.flac", __dir__) }

  %w[whisper whisper-pairs whisper-english].each do |name|
    describe name do
      reference = expected(folder, name)
      let(:model) { load(name) }

      it "has the features of transformers" do
        features = model.features(wav)
        bins, frames = reference.dig("features", "shape")
        expect(features.shape).to eq([frames, bins])
        rows = features.to_a
        differences = rows[7].zip(reference.dig("features", "first")).map { |a, b| (a - b).abs }
        expect(differences.max).to be < 1e-4
        sums = rows.each_slice(10).map { |slice| slice.first.sum }
        expect(sums.zip(reference.dig("features", "sums")).map { |a, b| (a - b).abs }.max).to be < bins * 1e-4
      end

      it "writes what transformers generates" do
        reference["cases"].each do |expected|
          call = expected["call"].transform_keys(&:to_sym)
          [:segment, false].each do |timestamps|
            result = model.transcribe(wav, timestamps: timestamps, **call)
            expect(result.token_ids).to eq(expected["token_ids"]), "#{call}: #{result.token_ids}"
            expect(result.text).to eq(expected["text"])
          end
        end
        expect(model.detect_language(wav)).to eq(reference["language"])
      end

      it "finds the beams of transformers" do
        language = name == "whisper-english" ? nil : "en"
        reference.fetch("beams").each do |width, expected|
          found = model.transcribe(wav, language: language, num_beams: width.to_i).token_ids
          expect(found).to eq(expected["short"]), "#{width} beams: #{found}"
          found = model.transcribe(long, language: language, num_beams: width.to_i, temperature: 0,
                                         no_speech_threshold: nil, condition_on_previous_text: false).token_ids
          expect(found).to eq(expected["long"]), "#{width} beams of long audio: #{found}"
        end
        both = model.transcribe([wav, long], language: language, num_beams: 2, temperature: 0)
        alone = [wav, long].map { |audio| model.transcribe(audio, language: language, num_beams: 2, temperature: 0) }
        expect(both.map(&:token_ids)).to eq(alone.map(&:token_ids))
      end

      it "goes through long audio window by window" do
        { "long" => false, "conditioned" => true }.each do |key, condition|
          language = name == "whisper-english" ? nil : "en"
          result = model.transcribe(long, language: language, temperature: 0,
                                          no_speech_threshold: nil, condition_on_previous_text: condition)
          wanted = reference.fetch(key)
          expect(result.token_ids).to eq(wanted["token_ids"]), "#{key}: #{result.token_ids}"
          expect(result.segments.map { |segment| segment[:tokens] }).to eq(wanted["segments"].map { |s| s["tokens"] })
          times = result.segments.flat_map { |segment| segment.values_at(:start, :end) }
          wanted_times = wanted["segments"].flat_map { |segment| segment.values_at("start", "end") }
          expect(times.zip(wanted_times).map { |a, b| (a - b).abs }.max).to be < 0.011
        end
      end
    end
  end

  # The embedding is not scaled whatever the file says, and times depend on what generation_config.json has.
  %w[whisper-scaled whisper-timed].each do |name|
    unusual = expected(folder, name)

    it "writes what transformers generates with the files of #{name}" do
      result = load(name).transcribe(wav, language: "en")
      expect(result.to_h.slice(:token_ids, :text)).to eq(unusual.slice("token_ids", "text").transform_keys(&:to_sym))
    end
  end

  it "writes times into short audio where a call wants them, as the checkpoint may" do
    with_settings("whisper-timed", "return_timestamps" => false) do |model|
      timed = self.class.expected(folder, "whisper-timed")
      expect(model.transcribe(wav, language: "en").token_ids).not_to eq(timed["token_ids"])
      # Behind the audio it hears nothing, as openai-whisper, where the checkpoint's own setting hears silence.
      expect(model.transcribe(wav, language: "en", timestamp_tokens: true).token_ids).to eq(timed["cleared"])
      expect(timed["cleared"]).not_to eq(timed["token_ids"])
    end
  end

  it "begins with the tokens that an English checkpoint demands" do
    demanded = self.class.expected(folder, "whisper-english")
    ids = demanded["forced"]
    with_settings("whisper-english", "forced_decoder_ids" => ids["forced_decoder_ids"]) do |model|
      expect(model.transcribe(wav, language: "en").token_ids).to eq(ids["token_ids"])
    end
    expect(demanded["cases"][0]["token_ids"]).not_to eq(ids["token_ids"])
  end

  it "follows as many texts as the checkpoint says" do
    with_settings("whisper", "num_beams" => 3) do |model|
      greedy, beams = self.class.expected(folder, "whisper").then { |it| [it["cases"][0]["token_ids"], it["beams"]] }
      expect(model.transcribe(wav, language: "en").token_ids).to eq(beams.dig("3", "short"))
      expect(model.transcribe(wav, language: "en", num_beams: 1).token_ids).to eq(greedy)
    end
  end

  %w[wav2vec2 wav2vec2-stable wav2vec2-adapter hubert wavlm wavlm-adapter wav2vec2-bert wav2vec2-bert-sines
     wav2vec2-bert-rotary wav2vec2-bert-adapter wav2vec2-bert-masked parakeet].each do |name|
    reference = expected(folder, name)

    it "labels as #{name} does in transformers" do
      result = load(name).transcribe(wav, language: "en")
      expect(result.token_ids).to eq(reference["token_ids"])
      expect(result.text).to eq(reference["text"])
      expect([result.language, result.duration]).to eq([nil, 0.8])
    end
  end

  %w[moonshine moonshine-wide].each do |name|
    describe name do
      reference = expected(folder, name)
      let(:model) { load(name) }

      it "writes what transformers generates" do
        reference["cases"].each do |expected|
          audio = File.expand_path("../fixtures/audio/#{expected["audio"]}", __dir__)
          call = expected["call"].transform_keys(&:to_sym)
          result = model.transcribe(audio, **call)
          expect(result.token_ids).to eq(expected["token_ids"]), "#{expected["audio"]} #{call}: #{result.token_ids}"
          expect(result.text).to eq(expected["text"])
        end
      end

      it "writes several audios at once as it writes each" do
        [1, 3].each do |width|
          both = model.transcribe([wav, long, wav], num_beams: width)
          expect(both).to eq([wav, long, wav].map { |audio| model.transcribe(audio, num_beams: width) })
        end
      end
    end
  end

  describe "Moonshine" do
    let(:model) { load("moonshine") }
    let(:minute) { Candle::Audio.open(long).samples(as: :array).cycle.first(70 * 16_000) }

    it "reads long audio in windows of half a minute" do
      seen = []
      counts = []
      result = model.transcribe(minute, sample_rate: 16_000, progress: ->(*pair) { counts << pair }) do |segment|
        seen << segment
      end
      expect(seen).to eq(result.segments)
      expect(counts.last).to eq([70, 70])
      times = result.segments.map { |segment| segment.values_at(:start, :end) }
      expect(times.map { |from, to| to - from }).to all(be <= 30)
      expect(times.size).to be >= 3
      expect(times.each_cons(2).map { |a, b| b.first - a.last }).to all(eq(0))
      first = minute.first((times.first.last * 16_000).round)
      expect(result.segments.first[:text]).to eq(model.transcribe(first, sample_rate: 16_000).text)
      expect(result.token_ids).to eq(result.segments.flat_map { |segment| segment[:tokens] })
    end

    it "samples, suppresses tokens, and says how likely they are" do
      plain = model.transcribe(long)
      expect(plain.segments.first[:avg_logprob]).to be < 0
      expect(model.transcribe(long, suppress_tokens: [plain.token_ids.first]).token_ids)
        .not_to include(plain.token_ids.first)
      sampled = ->(seed) { model.transcribe(long, temperature: 1.0, seed: seed).token_ids }
      expect(sampled.call(3)).to eq(sampled.call(3))
      expect((1..5).map(&sampled).uniq.size).to be > 1
      expect(model.transcribe([0.0] * 100, sample_rate: 16_000).to_h).to include(text: "", segments: [])
    end

    it "refuses what it does not have" do
      { { timestamps: :word } => /times of words/, { task: :translate } => /does not translate/,
        { language: "de" } => /language/, { initial_prompt: "a" } => /initial_prompt/, { hotwords: "a" } => /hotwords/,
        { temperature: [0, 1] } => /one temperature/,
        { num_beams: 2, temperature: 1 } => /temperature above 0/ }.each do |call, message|
        expect { model.transcribe(wav, **call) }.to raise_error(Candle::InvalidInputError, message)
      end
      expect(model.transcribe(wav, language: "en").text).to eq(model.transcribe(wav).text)
      expect { model.detect_language(wav) }.to raise_error(Candle::InvalidInputError, /languages/)
      expect(model.languages).to eq([])
      expect(Candle::ModelKind.of(model.model_id)).to eq(:speech)
      expect(model.warm_up).to be(model)
    end

    it "says what is wrong with a checkpoint" do
      changed = lambda do |settings|
        Dir.mktmpdir do |directory|
          FileUtils.cp_r(File.join(TinyModels.path("speech/moonshine"), "."), directory)
          config = TinyModels.record("speech/moonshine", "config.json").merge(settings)
          File.write(File.join(directory, "config.json"), JSON.generate(config))
          described_class.from_pretrained(directory, device: "cpu")
        end
      end
      expect { changed.call("encoder_num_key_value_heads" => 1) }
        .to raise_error(Candle::UnsupportedModelError, /encoder_num_key_value_heads/)
      expect { changed.call("rope_parameters" => { "rope_type" => "dynamic", "factor" => 2.0 }) }
        .to raise_error(Candle::UnsupportedModelError, /dynamic/)
      expect { changed.call("hidden_size" => 24) }.to raise_error(Candle::CorruptModelError)
    end
  end

  it "takes every kind of audio, and several at once" do
    alone = whisper.transcribe(wav, language: "en")
    samples = Candle::Audio.open(wav)
    bytes = File.binread(wav)
    list = [wav, bytes, samples, StringIO.new(bytes)]
    expect(whisper.transcribe(list, language: "english")).to eq([alone] * 4)
    expect(whisper.transcribe(samples.samples(as: :array), sample_rate: 16_000, language: :en)).to eq(alone)
    expect(whisper.transcribe(samples.samples(as: :packed), sample_rate: 16_000, language: "<|en|>")).to eq(alone)
    expect(whisper.transcribe([])).to eq([])
    mixed = whisper.transcribe([long, samples], language: "en", temperature: 0)
    expect(mixed.last).to eq(alone)
  end

  it "detects the language, and yields segments as they come" do
    seen = []
    result = whisper.transcribe(long, temperature: 0, no_speech_threshold: nil) { |segment| seen << segment }
    expect(result.language).to eq("en")
    expect(seen).to eq(result.segments)
    expect(result.segments.first.keys).to eq(%i[start end text tokens avg_logprob no_speech_prob temperature words])
    expect(whisper.languages).to eq(%w[de en])
    expect(whisper.sample_rate).to eq(16_000)
  end

  it "gives the same results from the same seed" do
    sampled = ->(seed) { whisper.transcribe(wav, language: "en", temperature: 1.0, seed: seed).token_ids }
    expect(sampled.call(3)).to eq(sampled.call(3))
    expect((1..5).map(&sampled).uniq.size).to be > 1
  end

  it "suppresses tokens, and shows hotwords to every window" do
    plain = whisper.transcribe(wav, language: "en").token_ids
    found = whisper.transcribe(wav, language: "en", suppress_tokens: [plain.first]).token_ids
    expect(found).not_to include(plain.first)
    prompted = whisper.transcribe(wav, language: "en", initial_prompt: "the cat").token_ids
    expect(whisper.transcribe(wav, language: "en", hotwords: "the cat").token_ids).to eq(prompted)
    expect(prompted).not_to eq(plain)
    expect { whisper.transcribe(wav, suppress_tokens: [-1]) }.to raise_error(ArgumentError, /suppress_tokens\[0\]/)
    expect { whisper.transcribe(wav, suppress_tokens: 5) }.to raise_error(ArgumentError, /suppress_tokens/)
  end

  %w[whisper moonshine].each do |name|
    restricted = TinyModels.record("speech/#{name}", "vocabulary.json")

    it "writes nothing but the words of a vocabulary with #{name}, as transformers does" do
      model = load(name)
      language = name == "whisper" ? "en" : nil
      restricted.fetch("cases").each do |expected|
        audio = File.expand_path("../fixtures/audio/#{expected["audio"]}", __dir__)
        result = model.transcribe(audio, language: language, vocabulary: restricted["words"],
                                         num_beams: expected["num_beams"])
        expect(result.token_ids).to eq(expected["token_ids"]), "#{expected}: #{result.token_ids}"
        expect(result.text.strip).to eq(expected["text"])
      end
      both = model.transcribe([wav, wav], language: language, vocabulary: restricted["words"])
      expect(both.map(&:text).uniq.size).to eq(1)
      short = model.transcribe(wav, language: language, vocabulary: ["sun"], max_new_tokens: 3)
      expect(short.token_ids.size).to be <= 3
    end
  end

  it "keeps to a vocabulary in long audio with times" do
    words = ["the cat", "ant", "a"]
    result = whisper.transcribe(long, language: "en", temperature: 0, no_speech_threshold: nil, vocabulary: words)
    expect(result.segments.size).to be > 1
    whole = /\A(the cat|ant|a)?( (the cat|ant|a))*\z/
    expect(result.segments.map { |segment| segment[:text].strip.squeeze(" ") }).to all(match(whole))
  end

  it "refuses what is no vocabulary" do
    expect { whisper.transcribe(wav, vocabulary: []) }.to raise_error(ArgumentError, /at least one word/)
    expect { whisper.transcribe(wav, vocabulary: [3]) }.to raise_error(Candle::InvalidInputError, /vocabulary/)
    expect { whisper.transcribe(wav, vocabulary: [" "]) }.to raise_error(Candle::InvalidInputError, /vocabulary\[0\]/)
    expect { load("wav2vec2").transcribe(wav, vocabulary: ["a"]) }
      .to raise_error(Candle::InvalidInputError, /Whisper or Moonshine/)
  end

  it "tells how far it is" do
    seen = []
    whisper.transcribe(long, language: "en", temperature: 0, progress: ->(done, total) { seen << [done, total] })
    expect(seen.map(&:last).uniq).to eq([3])
    expect(seen.map(&:first)).to eq(seen.map(&:first).sort)
    expect(seen.last).to eq([3, 3])
    load("wav2vec2").transcribe(long, progress: ->(*counts) { seen = counts })
    expect(seen).to eq([3, 3])
  end

  it "times words" do
    [whisper, load("wav2vec2")].each do |model|
      result = model.transcribe(wav, language: "en", timestamps: :word)
      expect(result.words).not_to be_empty
      expect(result.words.map { |word| word[:text] }.join).to eq(result.text.delete(" ")).or eq(result.text)
      times = result.words.flat_map { |word| word.values_at(:start, :end) }
      expect(times.minmax.first).to be >= 0
      expect(times.minmax.last).to be <= 1.0
      expect(result.words).to all(satisfy { |word| word[:start] <= word[:end] })
      expect(result.words.map { |word| word[:probability] }).to all(be_between(0, 1))
    end
  end

  it "writes subtitles" do
    segments = [{ start: 0.0, end: 1.5, text: " Hello", words: [] },
                { start: 3661.5, end: 3662.0, text: "b", words: [] }]
    result = Candle::Transcription.new(text: " Hellob", language: "en", duration: 2.0, segments: segments,
                                       token_ids: [1])
    expect(result.to_srt).to eq("1\n00:00:00,000 --> 00:00:01,500\nHello\n\n2\n01:01:01,500 --> 01:01:02,000\nb\n")
    expect(result.to_vtt).to start_with("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello\n")
    expect(JSON.parse(result.to_json)["text"]).to eq(" Hellob")
    expect(result.inspect).to eq("#<Candle::Transcription 2.0 s en \" Hellob\">")
  end

  it "refuses what it can't do" do
    expect { whisper.transcribe(wav, language: "fr") }.to raise_error(Candle::InvalidInputError, /"fr".*de, en/)
    expect { whisper.transcribe(wav, langauge: "en") }.to raise_error(ArgumentError, /langauge/)
    expect { whisper.transcribe(wav, task: :sing) }.to raise_error(ArgumentError, /:transcribe/)
    expect { whisper.transcribe(wav, temperature: 3) }.to raise_error(ArgumentError, /temperature/)
    expect { whisper.transcribe([wav, wav]) { nil } }.to raise_error(ArgumentError, /single audio/)
    expect { whisper.transcribe("no.wav") }.to raise_error(Candle::InvalidInputError, /no.wav/)
    expect { load("wav2vec2").detect_language(wav) }.to raise_error(Candle::InvalidInputError, /languages/)
    expect { load("whisper-english").transcribe(wav, language: "de") }
      .to raise_error(Candle::InvalidInputError, /English only/)
    expect { load("whisper-english").transcribe(wav, task: :translate) }
      .to raise_error(Candle::InvalidInputError, /translate/)
    expect { Candle::LLM.from_pretrained(whisper.model_id) }
      .to raise_error(Candle::UnsupportedModelError, /Transcriber/)
  end

  it "is a model like the others" do
    expect(Candle::ModelKind.of(whisper.model_id)).to eq(:speech)
    expect(Candle::DeviceUtils.supports_model?("metal", :speech)).to be(true)
    expect(Candle.supported_models.find { |model| model[:model_type] == "whisper" }[:tasks]).to eq([:speech])
    expect(whisper.model_info[:family]).to eq("whisper")
    expect(whisper.warm_up).to be(whisper)
    %i[f16 bf16].each do |dtype|
      expect(load("whisper", dtype: dtype).transcribe(wav, language: "en").text).to be_a(String)
    end
  end

  it "stops within a token when its thread is interrupted" do
    expect { Timeout.timeout(0.001) { 1000.times { whisper.transcribe(long, language: "en") } } }
      .to raise_error(Timeout::Error)
    expect(whisper.transcribe(wav, language: "en").duration).to eq(0.8)
  end
end
