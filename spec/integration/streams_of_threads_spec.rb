# frozen_string_literal: true

require "timeout"

# Threads that stream on one model take turns to compute for all. The one that computes may be killed, run out of
# time or leave its block; the others go on, and say what they say alone.
RSpec.describe "streams of many threads" do
  let(:llm) { Candle::LLM.from_pretrained(RoomyLLM.path, device: "cpu") }
  let(:config) { Candle::GenerationConfig.deterministic(max_length: 40) }
  let(:prompts) { %w[the a dog barks world hello cat house].map { |word| "#{word} dog and #{word}" } }
  let(:alone) { prompts.map { |prompt| llm.generate(prompt, config: config) } }

  # What a thread does with its stream, and what it came to; nil where it did not see the end.
  def follow(prompt, fate, pieces)
    case fate
    when :broken
      count = 0
      llm.generate_stream(prompt, config: config) { break if (count += 1) > pieces }
      nil
    when :late
      Timeout.timeout(pieces / 1000.0) { llm.generate_stream(prompt, config: config) { |text| text } }
    else
      llm.generate_stream(prompt, config: config) { |text| text }
    end
  rescue Timeout::Error
    nil
  end

  it "lose no wake-up and no token" do
    random = Random.new(11)
    expected = alone
    25.times do
      fates = prompts.map { %i[whole killed late broken whole][random.rand(5)] }
      threads = prompts.zip(fates).map { |prompt, fate| Thread.new { follow(prompt, fate, random.rand(1..20)) } }
      sleep random.rand / 50
      threads.zip(fates).each { |thread, fate| thread.kill if fate == :killed }
      expect(threads.map { |thread| thread.join(60) }).to all(be_a(Thread))
      threads.map(&:value).zip(fates, expected).each do |value, fate, text|
        expect(value).to eq(text) if fate == :whole || value
      end
    end
    expect(llm.stats).to include(running: 0, waiting: 0)
    expect(llm.generate(prompts, config: config)).to eq(expected)
  end
end
