# frozen_string_literal: true

require "json"

# How long audio goes on: thresholds and temperatures, parts of CTC models, parts between silence.
RSpec.describe Candle::Transcriber do
  def load(name, **options)
    described_class.from_pretrained(TinyModels.path("speech/#{name}"), device: "cpu", **options)
  end

  def audio(name)
    File.expand_path("../fixtures/audio/#{name}", __dir__)
  end

  # Longer than the window of the models, which is one second.
  let(:long) { audio("long.flac") }
  let(:whisper) { load("whisper") }
  let(:off) do
    { language: "en", compression_ratio_threshold: nil, logprob_threshold: nil, no_speech_threshold: nil }
  end

  def temperatures(result)
    result.segments.map { |segment| segment[:temperature].round(6) }.uniq
  end

  # Segments with nothing to read are left out, as openai-whisper does.
  def told(result)
    result.segments.reject { |segment| segment[:text].strip.empty? }
  end

  rules = TinyModels.record("speech/originals", "rules.json")
  rules["cases"].each do |expected|
    call = expected["call"].transform_keys(&:to_sym)

    it "decodes again and skips as openai-whisper does with #{call.compact}" do
      model = described_class.from_pretrained(File.join(TinyModels.path("speech/originals"), "tiny.pt"), device: "cpu")
      result = model.transcribe(audio(rules["audio"]), language: "en", condition_on_previous_text: false,
                                                       max_new_tokens: 16, **call)
      found = told(result)
      expect(found.map { |segment| segment[:text] }).to eq(expected["segments"].map { |segment| segment["text"] })
      found.zip(expected["segments"]) do |segment, wanted|
        expect(segment[:start]).to be_within(0.011).of(wanted["start"])
        expect(segment[:end]).to be_within(0.011).of(wanted["end"])
        expect(segment[:temperature]).to be_within(1e-6).of(wanted["temperature"])
        expect(segment[:no_speech_prob]).to be_within(1e-5).of(wanted["no_speech_prob"])
        expect(segment[:avg_logprob]).to be_within(1e-3).of(wanted["avg_logprob"])
      end
    end
  end

  it "tries the temperatures of a call in their order, until a threshold is met" do
    { logprob_threshold: 0, compression_ratio_threshold: 0 }.each do |threshold, value|
      expect(temperatures(whisper.transcribe(long, **off, threshold => value, temperature: [0.3, 0.1]))).to eq([0.1])
      expect(temperatures(whisper.transcribe(long, **off, threshold => value))).to eq([1.0])
      expect(temperatures(whisper.transcribe(long, **off, threshold => value, temperature: 0))).to eq([0.0])
    end
    expect(temperatures(whisper.transcribe(long, **off, logprob_threshold: -100, temperature: [0.3, 0.1]))).to eq([0.3])
    expect(temperatures(whisper.transcribe(long, **off))).to eq([0.0])
    short = whisper.transcribe(audio("tones.wav"), **off, logprob_threshold: 0)
    expect(temperatures(short)).to eq([0.0])
    short = whisper.transcribe(audio("tones.wav"), **off, logprob_threshold: 0, temperature: [0, 0.5])
    expect(temperatures(short)).to eq([0.5])
  end

  it "leaves out windows without speech, unless their text is likely" do
    plain = whisper.transcribe(long, **off, temperature: 0)
    expect(plain.segments.map { |segment| segment[:no_speech_prob] }).to all(be > 0)
    silent = { no_speech_threshold: 0, temperature: 0 }
    [nil, 0].each do |threshold|
      result = whisper.transcribe(long, **off, **silent, logprob_threshold: threshold)
      expect([result.text, result.segments, result.token_ids, result.duration]).to eq(["", [], [], plain.duration])
    end
    expect(whisper.transcribe(long, **off, **silent, logprob_threshold: -100)).to eq(plain)
    expect(whisper.transcribe(long, **off, no_speech_threshold: 1, temperature: 0)).to eq(plain)
    # Silence is not decoded again, so that nothing of the ladder is drawn.
    expect(whisper.transcribe(long, **off, no_speech_threshold: 0, logprob_threshold: 0, seed: 1).segments).to eq([])
  end

  it "reads the text before a window only where it was written at a low temperature" do
    both = lambda do |temperature|
      [true, false].map do |condition|
        whisper.transcribe(long, **off, temperature: temperature, seed: 5, condition_on_previous_text: condition)
      end
    end
    low, high = [0.2, 0.8].map(&both)
    expect(low.first.token_ids).not_to eq(low.last.token_ids)
    expect(high.first).to eq(high.last)
    expect(both.call(0).map(&:token_ids).uniq.size).to eq(2)
  end

  it "gives the first window alone an initial prompt where it reads no text before it" do
    settings = { **off, temperature: 0, condition_on_previous_text: false }
    plain, prompted = [nil, "the cat"].map { |text| whisper.transcribe(long, **settings, initial_prompt: text) }
    expect(prompted.segments.first).not_to eq(plain.segments.first)
    start = prompted.segments.map { |segment| segment[:start] }
    same = plain.segments.select { |segment| start.include?(segment[:start]) && segment[:start] > 1 }
    expect(same).not_to be_empty
    expect(prompted.segments).to include(*same)
  end

  describe "with weights of bytes" do
    %w[whisper whisper-english moonshine wav2vec2 parakeet].each do |name|
      it "writes about what f32 writes with #{name}, the same by eight threads as one by one" do
        audios = [audio("tones.wav"), long, audio("short.flac"), audio("slow.wav")]
        settings = name.start_with?("whisper") ? { temperature: 0, no_speech_threshold: nil } : {}
        exact, bytes = [nil, :int8].map { |dtype| load(name, dtype: dtype) }
        wanted = audios.map { |audio| bytes.transcribe(audio, **settings) }
        likely = ->(result) { result.segments.map { |segment| segment[:avg_logprob] }.first }
        expect(likely.call(wanted.first)).to be_within(0.5).of(likely.call(exact.transcribe(audios.first, **settings)))
        found = Array.new(8) do |number|
          Thread.new { audios.rotate(number).map { |audio| bytes.transcribe(audio, **settings) } }
        end
        found.each_with_index { |thread, number| expect(thread.value).to eq(wanted.rotate(number)) }
        expect(bytes.transcribe(audios, **settings)).to eq(wanted)
      end
    end
  end

  describe "CTC audio of more than two minutes" do
    # As labels.rs has it: parts of 20 seconds, each read with 5 seconds on each side.
    part = 20
    around = 5
    rate = 16_000

    it "is the text of its parts" do
      model = load("parakeet")
      rest = Candle::Audio.open(long).samples(as: :array)
      seconds = 121
      samples = rest.cycle.first(seconds * rate).each_with_index.map do |value, at|
        value * (0.6 + (at % 7919 / 20_000.0))
      end
      whole = model.transcribe(samples, sample_rate: rate, timestamps: :word)
      expect(whole.duration).to eq(seconds)
      found = whole.words.select { |word| word[:start] > 0 }
      expect(found).not_to be_empty
      # What stands well inside a part is what that part says with its surroundings.
      (0...seconds).step(part) do |from|
        first = [from - around, 0].max
        last = [from + part + around, seconds].min
        piece = samples[(first * rate)...(last * rate)]
        alone = model.transcribe(piece, sample_rate: rate, timestamps: :word).words
        inside = ->(word) { word[:start] >= from + 1 && word[:end] <= [from + part, seconds].min - 1 }
        shifted = alone.map { |word| word.merge(start: word[:start] + first, end: word[:end] + first) }
        pair = [found, shifted].map do |words|
          words.select(&inside).map do |word|
            word.values_at(:start, :end).map { |time| (time * 400).round } << word[:text]
          end
        end
        expect(pair.first).to eq(pair.last), "part from #{from}"
        expect(pair.first).not_to be_empty if from + part < seconds
      end
    end
  end

  describe "with a detector of voice" do
    let(:detector) do
      Candle::VoiceActivityDetector.from_pretrained(TinyModels.path("speech/silero-sharp"), device: "cpu")
    end
    # Five times three loud seconds, ten seconds of silence between them.
    let(:pauses) do
      loud = Candle::Audio.open(long).samples(as: :array).map { |value| value * 3 }
      samples = Array.new(5) { loud }.reduce { |all, next_one| all + ([0.0] * 160_000) + next_one }
      Candle::Audio.open(samples, sample_rate: 16_000)
    end
    # What is heard together: from the first word to the last of at most 30 seconds.
    let(:parts) do
      spans = detector.detect(pauses).map(&:values)
      spans.each_with_object([]) do |(from, to), all|
        all.any? && to - all.last.first <= 30 ? all.last[1] = to : all << [from, to]
      end
    end

    it "hears what is said in parts of at most half a minute, each as if alone" do
      expect(detector.detect(pauses).size).to be >= 5
      expect(parts.size).to eq(2)
      expect(parts.map { |from, to| to - from }).to all(be_between(10, 30))
      %w[whisper moonshine parakeet].each do |name|
        model = load(name)
        settings = name == "whisper" ? { language: "en", temperature: 0, no_speech_threshold: nil } : {}
        result = model.transcribe(pauses, vad: detector, **settings)
        alone = parts.map { |from, to| model.transcribe(pauses.slice(from, to), **settings) }
        expect(result.token_ids).to eq(alone.flat_map(&:token_ids))
        expect(result.duration).to be_within(1e-9).of(pauses.duration)
        wanted = parts.zip(alone).flat_map do |(from, _), one|
          one.segments.map { |segment| [segment[:text], segment[:start] + from, segment[:end] + from] }
        end
        expect(result.segments.map { |segment| segment.values_at(:text, :start, :end) }).to eq(wanted)
        # Nothing is written of the silence between the parts.
        gap = (parts[0].last + 1)..(parts[1].first - 0.01)
        expect(result.segments.map { |segment| segment[:start] }).to all(satisfy { |start| !gap.cover?(start) })
      end
    end
  end
end
