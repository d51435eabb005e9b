# frozen_string_literal: true

require "timeout"

# One model, many threads; interrupts; forks.
RSpec.describe "Encoders in threads and processes" do
  let(:model) { Candle::EmbeddingModel.from_pretrained(TinyModels.path("bert-sentence"), device: "cpu") }
  let(:texts) { Array.new(200) { |index| "the quick brown fox #{index}" } }

  # Hours of work, unless ended.
  let(:endless) { Enumerator.new { |yielder| loop { yielder << "the quick brown fox jumps over the lazy dog" } } }

  it "gives every thread the same vectors" do
    expected = model.embed(texts)
    found = Array.new(8) { Thread.new { Array.new(3) { model.embed(texts) } } }.flat_map(&:value)
    expect(found).to all(be_near(expected, 1e-6))
  end

  # Counted in processor time, which other processes do not take part in.
  it "costs two threads at once what it costs one" do
    cost = lambda do |halves|
      Array.new(5) do
        started = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
        halves.map { |half| Thread.new { model.embed(half) } }.each(&:join)
        Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) - started
      end.min
    end
    many = texts * 10
    alone = cost.call([many])
    expect(cost.call(many.each_slice(many.size / 2).to_a)).to be < 1.5 * alone
  end

  it "shares rerankers, recognizers, classifiers and masked models too" do
    calls = {
      Candle::Reranker => ["bert-reranker", ->(it) { it.score("what is it?", texts) }],
      Candle::NER => ["bert-token", lambda { |it|
                                      it.extract_entities(texts.first(20), confidence_threshold: 0).flatten.size
                                    }],
      Candle::Classifier => ["bert-sequence", lambda { |it|
                                                it.classify(texts.first(50)).map do |list|
                                                  list.first[:label]
                                                end
                                              }],
      Candle::MaskedLM => ["bert-masked", ->(it) { it.fill("the [MASK] dog").map { |filling| filling[:token] } }]
    }
    calls.each do |klass, (name, call)|
      shared = klass.from_pretrained(TinyModels.path(name), device: "cpu")
      expected = call.call(shared)
      expect(Array.new(4) { Thread.new { call.call(shared) } }.map(&:value)).to all(eq(expected))
    end
  end

  it "embeds lone texts in many threads and their children at once", if: Process.respond_to?(:fork) do
    text = "the quick brown fox jumps over the lazy dog " * 10
    expected = model.embed(text)
    same = -> { Array.new(50) { model.embed(text) }.uniq == [expected] }
    results = Array.new(3) do
      Thread.new do
        pid = fork do
          Thread.new { sleep(60) && exit!(9) }
          exit!(same.call ? 0 : 1)
        end
        [same.call, Process.wait2(pid).last.exitstatus]
      end
    end
    expect(results.map(&:value)).to all(eq([true, 0]))
  end

  it "lets other threads run while it computes" do
    steps = 0
    counter = Thread.new { loop { (steps += 1) && sleep(0.001) } }
    model.embed(texts * 20)
    expect(steps).to be > 5
  ensure
    counter.kill.join
  end

  it "ends by Timeout and stays usable" do
    many = Array.new(400_000, "the quick brown fox jumps over the lazy dog")
    elapsed = seconds { expect { Timeout.timeout(0.4) { model.embed(many) } }.to raise_error(Timeout::Error) }
    expect(elapsed).to be < 1.5
    elapsed = seconds do
      expect do
        Timeout.timeout(0.4) do
          model.embed_each(endless) do
            nil
          end
        end
      end.to raise_error(Timeout::Error)
    end
    expect(elapsed).to be < 1.5
    expect(model.embed("fox").size).to eq(32)
  end

  it "ends by a signal" do
    script = <<~RUBY
      model = Candle::EmbeddingModel.from_pretrained(#{TinyModels.path("bert-sentence").inspect}, device: "cpu")
      puts "ready"
      model.embed(Array.new(2_000_000, "the quick brown fox jumps over the lazy dog"))
    RUBY
    elapsed, output, = signal_ruby(script, "INT")
    expect(elapsed).to be < 3
    expect(output).to include("Interrupt")
  end

  it "computes in forked processes", if: Process.respond_to?(:fork) do
    expected = model.embed(texts).flatten
    pids = Array.new(3) do
      fork do
        Thread.new { sleep(60) && exit!(9) }
        found = model.embed(texts).flatten
        exit!(found.zip(expected).all? { |one, other| (one - other).abs < 1e-6 } ? 0 : 1)
      end
    end
    expect(pids.map { |pid| Process.wait2(pid).last.exitstatus }).to all(eq(0))
    expect(model.embed(texts).flatten).to be_near(expected, 1e-6)
  end
end
