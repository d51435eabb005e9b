# frozen_string_literal: true

require "timeout"

# With a full KV cache nobody waits for a stream that its caller does not read.
RSpec.describe "Preemption of paused streams" do
  path = TinyModels.path("decoders/llama")
  roomy = Candle::LLM.from_pretrained(path, device: "cpu", kv_cache: 64_000_000)
  page = 64_000_000 / roomy.stats[:pages_free]

  # A model whose KV cache has one page of 64 tokens.
  let(:llm) { Candle::LLM.from_pretrained(path, device: "cpu", kv_cache: page + 1) }
  let(:options) { { temperature: 1.0, seed: 3, max_length: 40 } }
  let(:expected) { ["the dog", "a lazy fox"].to_h { |prompt| [prompt, roomy.generate(prompt, **options)] } }

  around { |example| Timeout.timeout(60) { example.run } }

  it "has room for one page alone" do
    expect(llm.stats[:pages_free]).to eq(1)
  end

  it "generates inside the block of generate_stream" do
    inner = []
    text = llm.generate_stream("the dog", **options) do |_|
      inner << llm.generate("a lazy fox", **options) if inner.size < 3
    end
    expect(text).to eq(expected["the dog"])
    expect(inner).to eq([expected["a lazy fox"]] * 3)
    expect(llm.stats[:preempted]).to be > 0
    expect(llm.stats.values_at(:running, :waiting, :pages_used)).to eq([0, 0, 0])
  end

  it "streams inside the block of generate_stream" do
    inner = nil
    text = llm.generate_stream("the dog", **options) do |_|
      inner ||= llm.generate_stream("a lazy fox", **options).to_a.join
    end
    expect([text, inner]).to eq(expected.values)
  end

  it "does not make a second thread wait while the first consumer sleeps" do
    asleep = Queue.new
    sleeper = Thread.new do
      llm.generate_stream("the dog", **options) { |_| asleep.empty? && asleep.push(true) && sleep }
    end
    asleep.pop
    expect(llm.generate("a lazy fox", **options)).to eq(expected["a lazy fox"])
    sleeper.wakeup until sleeper.join(0.01)
    expect(sleeper.value).to eq(expected["the dog"])
  end

  it "takes the pages of an abandoned Enumerator" do
    pieces = llm.generate_stream("the dog", **options)
    first = Array.new(2) { pieces.next }
    expect(llm.generate("a lazy fox", **options)).to eq(expected["a lazy fox"])
    # It may still be read.
    rest = []
    loop { rest << pieces.next }
    expect((first + rest).join).to eq(expected["the dog"])
  end

  it "raises for what never fits, beside a paused stream that goes on" do
    refused = 0
    text = llm.generate_stream("the dog", **options) do |_|
      llm.generate("the dog is in a lazy fox " * 20, max_length: 3)
    rescue Candle::InvalidInputError => e
      refused += 1 if e.message.include?("do not fit the context")
    end
    expect(text).to eq(expected["the dog"])
    expect(refused).to be > 0
  end
end
