# frozen_string_literal: true

require "json"
require "tmpdir"

RSpec.describe Candle::VLM, "of seeded checkpoints" do
  fixtures = File.expand_path("../fixtures/seeded_vlms", __dir__)

  def record(folder, file = "expected.json")
    JSON.parse(File.read(File.join(folder, file), encoding: "UTF-8"))
  end

  # A whole checkpoint in a folder of its own, whose files the block may change.
  def checkpoint(source)
    Dir.mktmpdir("seeded") do |folder|
      FileUtils.cp(Dir[File.join(source, "*.json")], folder)
      weights = SeededModels.safetensors(record(source, "tensors.json"))
      File.binwrite(File.join(folder, "model.safetensors"), weights)
      yield folder
    end
  end

  def opened(folder)
    described_class.from_pretrained(folder, device: "cpu")
  end

  def messages(question)
    images = question["pictures"].map { |name| File.expand_path("../fixtures/images/#{name}", __dir__) }
    parts = images.map { |image| { type: "image", image: image } }
    [{ role: "user", content: [*parts, { type: "text", text: question["question"] }] }]
  end

  # The largest difference between the logarithms of a first token's probabilities and the reference's.
  def off(completion, logits)
    most = logits.max
    sum = most + Math.log(logits.sum { |logit| Math.exp(logit - most) })
    completion.logprobs.first[:top].map { |one| (one[:logprob] - (logits[one[:id]] - sum)).abs }.max
  end

  def change(folder, file)
    path = File.join(folder, file)
    changed = record(folder, file)
    yield changed
    File.write(path, JSON.generate(changed))
  end

  %w[paligemma paligemma-2 idefics2 idefics2-split cohere2_vision aya_vision llama4 gemma4 gemma3n fast_vlm
     minicpmv4_6].each do |name|
    it "lets #{name} choose the tokens that transformers chooses, alone, again and with others" do
      source = File.join(fixtures, name)
      asked = record(source)["asked"]
      checkpoint(source) do |folder|
        vlm = opened(folder)
        asked.each do |question|
          completion = vlm.complete(messages(question), max_length: 8, logprobs: 20)
          expect(off(completion, question["logits"])).to be < 1e-4
          expect(completion.token_ids).to eq(question["tokens"])
          expect(completion.usage.prompt_tokens).to eq(question["ids"].size)
        end
        together = asked.map { |question| Thread.new { vlm.complete(messages(question), max_length: 8) } }.map(&:value)
        expect(together.map(&:token_ids)).to eq(asked.map { |question| question["tokens"] })
        # A prompt whose tokens see each other is of no use to another one, and states are saved at ends of pages.
        reusable = { "paligemma" => ->(_) { 0 }, "paligemma-2" => ->(_) { 0 },
                     "minicpmv4_6" => ->(size) { size / 64 * 64 } }
        reusable = reusable.fetch(name, ->(size) { size - 1 })
        reused = together.map { |one| one.usage.cached_tokens }
        expect(reused).to eq(asked.map { |question| reusable.call(question["ids"].size) })
        expect(vlm.looks).to eq(asked.flat_map { |question| question["pictures"] }.uniq.size)
        expect(Candle::ModelKind.of(folder)).to eq(:vlm)
      end
    end
  end

  %w[smolvlm qwen2_5_vl qwen3_vl-video llava_onevision-video gemma4-video].each do |name|
    it "lets #{name} choose the tokens that transformers chooses for a video" do
      checkpoint(File.join(fixtures, name)) do |folder|
        vlm = opened(folder)
        record(folder)["watched"].each do |question|
          frames = question["frames"].map { |frame| File.expand_path("../fixtures/images/#{frame}", __dir__) }
          video = { type: "video", video: frames, fps: question["fps"] }
          asked = messages(question).tap { |list| list.first[:content].unshift(video) }
          looks = vlm.looks
          2.times do
            completion = vlm.complete(asked, max_length: 8, logprobs: 20)
            expect(off(completion, question["logits"])).to be < 1e-4
            expect(completion.token_ids).to eq(question["tokens"])
            expect(completion.usage.prompt_tokens).to eq(question["ids"].size)
          end
          expect(vlm.looks).to eq(looks + 1 + question["pictures"].size)
        end
      end
    end
  end

  it "says what is wrong with a video" do
    photo = File.expand_path("../fixtures/images/photo.png", __dir__)
    ask = ->(vlm, **video) { vlm.chat([{ role: "user", content: [{ type: "video", **video }] }], max_length: 1) }
    checkpoint(File.join(fixtures, "qwen3_vl-video")) do |folder|
      vlm = opened(folder)
      expect(ask.call(vlm, video: [photo] * 2)).to be_a(String)
      { {} => /needs the video itself/, { video: photo } => /must be an Array of images/,
        { video: [] } => /at least one frame/, { video: [photo] } => /at least two/,
        { video: [photo] * 2, fps: 0 } => /fps must be finite/, { video: [photo] * 2, fps: "x" } => /fps must be/,
        { video: [photo, "/nowhere.png"] } => /nowhere/ }.each do |video, words|
        expect { ask.call(vlm, **video) }.to raise_error(Candle::InvalidInputError, words)
      end
    end
    checkpoint(File.join(fixtures, "paligemma")) do |folder|
      expect do
        ask.call(opened(folder), video: [photo])
      end.to raise_error(Candle::InvalidInputError, /does not read videos/)
    end
  end

  it "reads a prompt in both directions again after its pages were taken" do
    checkpoint(File.join(fixtures, "paligemma-2")) do |folder|
      asked = record(folder)["asked"]
      wanted = asked.map { |question| opened(folder).complete(messages(question), max_length: 40).token_ids }
      vlm = described_class.from_pretrained(folder, device: "cpu", kv_cache: 60_000)
      threads = (asked * 3).map { |question| Thread.new { vlm.complete(messages(question), max_length: 40).token_ids } }
      expect(threads.map(&:value)).to eq(wanted * 3)
      expect(vlm.stats[:preempted]).to be_positive
    end
  end

  it "reads PaliGemma's prompts without a template, and texts alone as they are" do
    checkpoint(File.join(fixtures, "paligemma")) do |folder|
      question = record(folder)["asked"].first
      change(folder, "tokenizer_config.json") { |config| config.delete("chat_template") }
      vlm = opened(folder)
      expect(vlm.complete(messages(question), max_length: 8).token_ids).to eq(question["tokens"])
      expect(vlm.chat([{ role: "user", content: "what?" }], max_length: 2)).to be_a(String)
    end
  end

  it "says what is wrong with a resampler" do
    checkpoint(File.join(fixtures, "idefics2")) do |folder|
      change(folder, "config.json") { |config| config["perceiver_config"]["num_key_value_heads"] = 3 }
      expect { opened(folder) }.to raise_error(Candle::CorruptModelError, /4 heads of the resampler/)
      change(folder, "config.json") do |config|
        config["perceiver_config"].update("num_key_value_heads" => 2, "resampler_depth" => 3)
      end
      expect { opened(folder) }.to raise_error(Candle::CorruptModelError, /layers\.2/)
      change(folder, "config.json") { |config| config["perceiver_config"]["resampler_n_latents"] = 1 << 40 }
      expect { opened(folder) }.to raise_error(Candle::CorruptModelError, /resampler_n_latents/)
    end
  end

  it "refuses images that are too small to be cut, and sizes that mean nothing" do
    checkpoint(File.join(fixtures, "idefics2-split")) do |folder|
      # A bitmap of 4x1 pixels.
      line = ["BM", 66, 0, 54, 40, 4, 1, 1, 24, 0, 12, 0, 0, 0, 0].pack("a2L<4l<2S<2L<6") + ("\x7F" * 12)
      expect { opened(folder).ask(line, "what?") }.to raise_error(Candle::InvalidInputError, /too small to be cut/)
      change(folder, "preprocessor_config.json") { |config| config["size"] = { "shortest_edge" => 4 } }
      expect { opened(folder) }.to raise_error(Candle::UnsupportedModelError, /longest_edge/)
    end
  end
end
