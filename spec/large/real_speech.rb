# frozen_string_literal: true

require_relative "../../bench/harness/spoken"

# Real weights on real recordings: with weights of bytes Whisper writes what it writes in f32.
RSpec.describe "openai/whisper-base" do
  include_context "with the real model", "openai/whisper-base"

  let(:recordings) do
    found, reason = RealModels.try("moonshine-voice/recordings")
    found || skip(reason)
  end

  def transcribed(dtype, **settings)
    file = File.join(real_path, "ggml-f16.bin")
    model = Candle::Transcriber.from_pretrained(file, device: "cpu", dtype: dtype)
    Bench::Spoken::TEXTS.to_h do |name, _|
      recording = File.join(recordings, "#{name}.wav")
      [name, model.transcribe(recording, language: "en", temperature: 0, timestamp_tokens: true, **settings)]
    end
  end

  def wrong(results)
    Bench::Spoken::TEXTS.sum { |name, text| Bench::Spoken.errors(results.fetch(name).text, text) }
  end

  it "writes with int8 what it writes in f32, and no more wrong words" do
    exact, bytes = %i[f32 int8].map { |dtype| transcribed(dtype) }
    expect(wrong(exact)).to be <= 1
    expect(wrong(bytes)).to be <= wrong(exact)
    apart = exact.sum { |name, result| Bench::Spoken.errors(bytes.fetch(name).text, result.text) }
    expect(apart).to be <= 2
    exact.each do |name, result|
      likely = [result, bytes.fetch(name)].map { |one| one.segments.first[:avg_logprob] }
      expect(likely.last).to be_within(0.05).of(likely.first), name
    end
  end

  it "searches with int8 by beams as in f32" do
    exact, bytes = %i[f32 int8].map { |dtype| transcribed(dtype, num_beams: 3) }
    expect(wrong(bytes)).to be <= wrong(exact) + 1
  end
end
