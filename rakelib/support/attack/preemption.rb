# frozen_string_literal: true

require_relative "patience"

# Callers that share a KV cache of one to four pages and stream, pause, call within a stream, abandon streams and are
# killed, in any order. Every call ends within a bound, with the text that it gives alone or with an error.
class Preemption
  Wrong = Class.new(StandardError)
  PROMPTS = ["the dog", "a lazy fox jumps over", "the quick brown dog is in a lazy fox", "fox " * 10].freeze
  # What a call may take.
  PATIENCE = 5
  MOST_TOKENS = 24

  # @param root [String] where the fixtures are
  def initialize(root)
    @path = File.join(root, "tiny/decoders/llama")
    @roomy = load(64_000_000)
    @page = 64_000_000 / @roomy.stats[:pages_free]
    @texts = {}
    @models = {}
  end

  # @param random [Random]
  # @return [void]
  def attack(random)
    pages = 1 + random.rand(4)
    llm = @models[pages] ||= load((@page * pages) + 1)
    callers = Array.new(1 + random.rand(3)) do
      own = Random.new(random.rand(1 << 30))
      Thread.new { Array.new(4) { act(llm, own, 0) } }.tap { |thread| thread.report_on_exception = false }
    end
    callers.sample(random: random).kill if random.rand(3).zero?
    callers.each { |thread| ended(thread) }
    at_rest(llm)
  end

  private

  def load(bytes) = Candle::LLM.from_pretrained(@path, device: "cpu", kv_cache: bytes)

  def act(llm, random, depth)
    case random.rand(5)
    when 0 then whole(llm, random)
    when 1, 2 then streamed(llm, random, depth)
    when 3 then llm.generate_stream(PROMPTS.sample(random: random), **options(random)).next
    else sleep(random.rand * 0.004)
    end
  rescue StopIteration
    nil
  rescue Candle::InvalidInputError => e
    raise unless e.message.include?("kv_cache")
  end

  def whole(llm, random)
    prompt = PROMPTS.sample(random: random)
    given = options(random)
    check(prompt, given, llm.generate(prompt, **given))
  end

  # Reads a stream, with calls of its own between two pieces, to its end or not.
  def streamed(llm, random, depth)
    prompt = PROMPTS.sample(random: random)
    given = options(random)
    last = random.rand(2).zero? ? nil : random.rand(MOST_TOKENS)
    read = 0
    text = llm.generate_stream(prompt, **given) do |_|
      break if read == last

      read += 1
      act(llm, random, depth + 1) if depth < 2 && random.rand(6).zero?
    end
    check(prompt, given, text) if text
  end

  def options(random) = { temperature: 1.0, seed: random.rand(3), max_length: 1 + random.rand(MOST_TOKENS) }

  def check(prompt, given, text)
    expected = @texts[[prompt, given]] ||= @roomy.generate(prompt, **given)
    raise Wrong, "another text for #{prompt.inspect} with #{given}" unless text == expected
  end

  # What was killed or abandoned is freed with its last reference.
  def at_rest(llm)
    10.times do
      return if llm.stats.values_at(:running, :waiting, :pages_used).sum.zero?

      GC.start
      sleep 0.01
    end
    whole = llm.generate(PROMPTS.first, max_length: 1)
    raise Wrong, "a call gives nothing after the others" unless whole
  end

  def ended(thread)
    patience = Patience.new(PATIENCE, Process.pid)
    raise Wrong, "a caller does not get on" unless patience.wait { |seconds| thread.join(seconds) }
  end
end
