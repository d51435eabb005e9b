# frozen_string_literal: true

require "timeout"

# Calls of many threads that meet are computed together.
RSpec.describe "Calls that meet" do
  let(:model) { Candle::EmbeddingModel.from_pretrained(TinyModels.path("bert-sentence"), device: "cpu") }
  let(:texts) { Array.new(60) { |index| (%w[the quick brown fox jumps over lazy dogs] * (1 + (index % 7))).join(" ") } }
  let(:expected) { texts.map { |text| model.embed(text) } }

  def idle
    { running: 0, waiting: 0 }
  end

  # Every thread begins elsewhere, so that what meets is a mixture.
  def in_threads(count = 16)
    Array.new(count) { |thread| Thread.new { yield thread } }.map(&:value)
  end

  it "are batches, and each gets to the bit what it gets alone" do
    expected
    before = model.stats[:batches]
    same = in_threads do |thread|
      Array.new(texts.size) { |turn| (thread * 7) + turn }.all? do |at|
        model.embed(texts[at % texts.size]) == expected[at % texts.size]
      end
    end
    expect(same).to all(be(true))
    expect(model.stats[:batches] - before).to be < 16 * texts.size
    expect(model.stats).to include(idle)
    expect(model.stats[:batch_size][:buckets][1.0]).to be < model.stats[:batches]
  end

  it "are those of rerankers, classifiers, recognizers and masked models too" do
    calls = {
      Candle::Reranker => ["bert-reranker", ->(it, text) { it.score("what is it?", [text, "a dog"]) }],
      Candle::Classifier => ["bert-sequence", ->(it, text) { it.classify(text) }],
      Candle::NER => ["bert-token", ->(it, text) { it.extract_entities(text, confidence_threshold: 0) }],
      Candle::MaskedLM => ["bert-masked", ->(it, text) { it.fill("#{text.split.first(9).join(" ")} [MASK]") }]
    }
    calls.each do |klass, (name, call)|
      shared = klass.from_pretrained(TinyModels.path(name), device: "cpu")
      expected = texts.first(12).map { |text| call.call(shared, text) }
      found = in_threads { |_| texts.first(12).map { |text| call.call(shared, text) } }
      expect(found).to all(eq(expected)), name
      expect(shared.stats).to include(idle)
      expect(shared.stats[:batches]).to be < 17 * 12
    end
  end

  it "keep their own options and their own errors" do
    long = (["fox"] * 5000).join(" ")
    found = in_threads do |thread|
      Array.new(30) do |turn|
        next model.embed(texts[turn], normalize: thread.even?, dimensions: 8) unless thread == 3

        model.embed(long, truncate: false)
      rescue Candle::InvalidInputError => e
        e.message
      end
    end
    wanted = [true, false].map do |normalize|
      texts.first(30).map { |text| model.embed(text, normalize: normalize, dimensions: 8) }
    end
    found.each_with_index do |results, thread|
      next expect(results).to all(match(/has 5\d+ tokens/)) if thread == 3

      expect(results).to eq(wanted[thread % 2])
    end
  end

  # The measurement of a lone text beside a bulk call, and the other way round.
  it "are fair to each other: a lone text is not held up by a bulk call, nor that by lone texts" do
    bulk = texts * 60
    alone = Array.new(3) { seconds { model.embed(bulk) } }.min
    done = false
    calls = 0
    thread = Thread.new { (model.embed("fox") && (calls += 1)) until done }
    Thread.pass until calls.positive?
    before = calls
    beside = seconds { model.embed(bulk) }
    between = calls - before
    done = true
    thread.join
    expect(between).to be > 20
    expect(beside).to be < (5 * alone) + 0.5
  end

  describe "and are interrupted" do
    let(:interrupts) { 400 }

    # One caller that is interrupted in one way or another, again and again.
    def interrupted_once(ways, texts)
      case ways
      when 0 then Timeout.timeout(rand * 0.003) { model.embed(texts.sample) }
      when 1
        thread = Thread.new { model.embed(texts.sample) }
        sleep(rand * 0.002)
        thread.kill.join
      else
        thread = Thread.new { model.embed(texts.sample) }
        thread.report_on_exception = false
        sleep(rand * 0.002)
        thread.raise(IOError, "enough")
        thread.join
      end
    rescue Timeout::Error, IOError
      nil
    end

    it "leave the others' results right, and nothing behind" do
      expected
      done = false
      others = Array.new(12) do |thread|
        Thread.new do
          at = thread
          at += 1 while !done && model.embed(texts[at % texts.size]) == expected[at % texts.size]
          [done, at > thread]
        end
      end
      Timeout.timeout(120) do
        interrupting = Array.new(4) do |thread|
          Thread.new { (interrupts / 4).times { |turn| interrupted_once((turn + thread) % 3, texts) } }
        end
        interrupting.each(&:join)
        done = true
        expect(others.map(&:value)).to all(eq([true, true]))
      end
      expect(model.stats).to include(idle)
      expect(model.embed(texts.first)).to eq(expected.first)
    end
  end

  it "go on in a child that is forked while they run", if: Process.respond_to?(:fork) do
    expected
    done = false
    busy = Array.new(8) { Thread.new { model.embed(texts.sample) until done } }
    results = Array.new(6) do
      pid = fork do
        Thread.new { sleep(60) && exit!(9) }
        right = model.stats.slice(:running, :waiting) == idle
        right &&= in_threads(4) { |thread| model.embed(texts[thread]) == expected[thread] }.all?
        exit!(right && model.stats.slice(:running, :waiting) == idle ? 0 : 1)
      end
      Process.wait2(pid).last.exitstatus
    end
    done = true
    busy.each(&:join)
    expect(results).to all(eq(0))
  end

  it "end as usual when the model is closed meanwhile" do
    expected
    ended = in_threads do |thread|
      sleep(0.05) && model.close if thread.zero?
      Array.new(10_000) { |turn| model.embed(texts[turn % texts.size]) == expected[turn % texts.size] }
    rescue Candle::Error => e
      e.message
    end
    expect(ended).to all(match(/was closed/))
    expect(model).to be_closed
  end

  it "are counted" do
    short = ["the quick fox", "lazy dogs"]
    3.times { model.embed(short) }
    stats = model.stats
    expect(stats.keys).to eq(%i[running waiting batches tokens_in batch_size batch_tokens queue_ms forward_ms])
    expect(stats).to include(batches: 3, tokens_in: 3 * short.sum { |text| model.count_tokens(text) })
    expect(stats[:batch_size]).to include(count: 3, sum: 6.0)
    expect(stats[:forward_ms]).to include(count: 3, p50: be_positive, p99: be_positive)
    expect(stats[:queue_ms][:buckets]).to include(Float::INFINITY => 3)
    static = Candle::EmbeddingModel.from_pretrained(TinyModels.path("model2vec"), device: "cpu")
    static.embed(%w[fox dog])
    expect(static.stats).to include(batches: 1, tokens_in: be_positive, running: 0)
  end
end
