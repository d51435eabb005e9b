# frozen_string_literal: true

require "timeout"

# Whatever ends a generation ends it within a token, and the model is usable at once.
RSpec.describe "A language model at work" do
  path = TinyModels.path("decoders/llama")
  greedy = Candle::GenerationConfig.deterministic(max_length: 8)
  endless = { max_length: 10_000_000, temperature: 1.0, context_overflow: :roll }.freeze

  let(:llm) { Candle::LLM.from_pretrained(path, device: "cpu") }

  # Generates for ever: a text that the model ends itself is followed by another.
  def generate_for_ever(llm, options)
    loop { llm.generate("the dog", **options) }
  end

  it "is ended by Timeout and by Thread#raise" do
    expected = llm.generate("the dog", config: greedy)
    expect(seconds do
      expect { Timeout.timeout(0.1) { generate_for_ever(llm, endless) } }.to raise_error(Timeout::Error)
    end).to be < 1
    thread = Thread.new { generate_for_ever(llm, endless) }
    thread.report_on_exception = false
    sleep 0.05
    thread.raise(IOError, "enough")
    expect { thread.value }.to raise_error(IOError, "enough")
    expect(llm.generate("the dog", config: greedy)).to eq(expected)
  end

  it "is ended by Thread#kill" do
    expected = llm.generate("the dog", config: greedy)
    thread = Thread.new { generate_for_ever(llm, endless) }
    sleep 0.05
    expect(seconds { thread.kill.join }).to be < 1
    expect(llm.generate("the dog", config: greedy)).to eq(expected)
  end

  it "is ended by Ctrl-C" do
    elapsed, output, = signal_ruby(<<~RUBY, "INT")
      llm = Candle::LLM.from_pretrained(#{path.inspect}, device: "cpu")
      puts "ready"
      begin
        loop { llm.generate("the dog", max_length: 10_000_000, temperature: 1.0, context_overflow: :roll) }
      rescue Interrupt
        puts "interrupted"
        puts llm.generate("the dog", config: Candle::GenerationConfig.deterministic(max_length: 8))
      end
    RUBY
    expect(elapsed).to be < 3
    expect(output).to eq("interrupted\n#{llm.generate("the dog", config: greedy)}\n")
  end

  it "lets other threads go on" do
    count = 0
    thread = Thread.new { generate_for_ever(llm, endless) }
    sleep 0.01 while (count += 1) < 20
    expect(thread).to be_alive
    thread.kill.join
  end
end
