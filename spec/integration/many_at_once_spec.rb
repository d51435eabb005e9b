# frozen_string_literal: true

require "fileutils"
require "json"
require "timeout"
require "tmpdir"

# One model serves all threads together, and nobody's text changes.
RSpec.describe "Many texts at once" do
  path = TinyModels.path("decoders/llama")
  words = %w[the dog is in a lazy fox jumps over quick brown]
  prompts = Array.new(16) { |index| words.rotate(index * 3).first(2 + (index % 7)).join(" ") }

  let(:llm) { Candle::LLM.from_pretrained(path, device: "cpu") }

  def options(index)
    index.even? ? { temperature: 0.0, max_length: 20 } : { temperature: 1.0, seed: index, max_length: 20 }
  end

  def texts_of(llm, prompts)
    prompts.each_with_index.map { |prompt, index| llm.generate(prompt, **options(index)) }
  end

  it "gives 16 threads the texts that one thread gets" do
    expected = texts_of(llm, prompts)
    3.times do
      llm.clear_cache
      threads = prompts.each_with_index.map { |prompt, index| Thread.new { llm.generate(prompt, **options(index)) } }
      expect(threads.map(&:value)).to eq(expected)
      streamed = prompts.each_with_index.map do |prompt, index|
        Thread.new { llm.generate_stream(prompt, **options(index)).to_a.join }
      end
      expect(streamed.map(&:value)).to eq(expected)
    end
    stats = llm.stats
    expect(stats.values_at(:running, :waiting, :pages_used)).to eq([0, 0, 0])
    expect(stats[:batches]).to be < stats[:tokens_out]
    expect(stats[:batch_size][:sum] / stats[:batch_size][:count]).to be > 1.5
  end

  it "mixes adapters and constraints with others" do
    model = Candle::LLM.from_pretrained(path, device: "cpu", adapters: { one: TinyModels.path("adapters/llama") })
    calls = [-> { model.generate("the dog", temperature: 0, max_length: 12) },
             -> { model.generate("the dog", temperature: 0, max_length: 12, adapter: :one) },
             -> { model.generate_regex("the dog", pattern: /\d{3}-\d{4}/, temperature: 0) },
             -> { model.generate_structured("a", schema: { type: "object", properties: { ok: { type: "boolean" } } }) }]
    expected = calls.first(3).map(&:call)
    4.times do
      found = (calls * 4).map { |call| Thread.new(&call) }.map(&:value)
      found.each_slice(4) { |slice| expect(slice.first(3)).to eq(expected) }
    end
    expect(model.stats[:pages_used]).to eq(0)
  end

  it "reads a common beginning once" do
    shared = Candle::LLM.from_pretrained(TinyModels.path("decoders/qwen2"), device: "cpu")
    beginning = "the dog is in a lazy fox "
    first = shared.complete("#{beginning}one", temperature: 0, max_length: 4)
    second = shared.complete("#{beginning}two", temperature: 0, max_length: 4)
    expect(first.usage.cached_tokens).to eq(0)
    expect(second.usage.cached_tokens).to be > 4
    expect(shared.stats.values_at(:prefix_hits, :prefix_tokens)).to eq([1, second.usage.cached_tokens])
    shared.clear_cache
    expect(shared.complete("#{beginning}two", temperature: 0, max_length: 4)).to have_attributes(text: second.text)
    expect(shared.stats[:pages_idle]).to be > 0
    expect(shared.clear_cache).to be_nil
    expect(shared.stats[:pages_idle]).to eq(0)
  end

  it "stores the common beginning of idle sessions once" do
    Dir.mktmpdir do |directory|
      FileUtils.cp_r("#{path}/.", directory)
      config = File.join(directory, "config.json")
      File.write(config, JSON.generate(JSON.parse(File.read(config)).merge("max_position_embeddings" => 2048)))
      model = Candle::LLM.from_pretrained(directory, device: "cpu", kv_cache: "256MB")
      beginning = "#{words.join(" ")} " * 30
      whole = model.tokenizer.encode(beginning).size / 64
      expect(whole).to be >= 4
      alike, apart = [->(_) { beginning }, ->(index) { "#{index} #{beginning}" }].map do |system|
        model.clear_cache
        sessions = Array.new(64) do |index|
          model.session(system: system.call(index),
                        chat_template: "{% for message in messages %}{{ message.content }} {% endfor %}")
        end
        sessions.each_with_index { |session, index| session.say("#{index} dog", temperature: 0, max_length: 4) }
        expect(model.stats[:pages_used]).to eq(0)
        model.stats[:pages_idle]
      end
      # What follows the beginning of each begins within a page, and may need the next.
      expect(alike).to be_between(whole + 1, whole + (64 * 2))
      expect(apart).to be >= 64 * whole
    end
  end

  it "lets wait what does not fit, and refuses what never will" do
    expected = texts_of(llm, prompts)
    page = 64_000_000 / Candle::LLM.from_pretrained(path, device: "cpu", kv_cache: 64_000_000).stats[:pages_free]
    tight = Candle::LLM.from_pretrained(path, device: "cpu", kv_cache: (page + 1) * 3)
    expect(tight.stats[:pages_free]).to eq(3)
    threads = prompts.each_with_index.map { |prompt, index| Thread.new { tight.generate(prompt, **options(index)) } }
    expect(Timeout.timeout(60) { threads.map(&:value) }).to eq(expected)
    none = Candle::LLM.from_pretrained(path, device: "cpu", kv_cache: 100)
    expect { none.generate("the dog", max_length: 3) }.to raise_error(Candle::InvalidInputError, /kv_cache: allows/)
  end

  it "stores keys and values as told" do
    expected = llm.generate("the dog is", temperature: 0, max_length: 8)
    %w[f16 bf16 q8_0].each do |type|
      stored = Candle::LLM.from_pretrained(path, device: "cpu", kv_dtype: type, kv_cache: "64MB")
      expect(stored.stats[:pages_free]).to be > llm.class.from_pretrained(path, kv_cache: "64MB").stats[:pages_free]
      expect(stored.generate("the dog is", temperature: 0, max_length: 1)).to eq(expected[0, 1]).or be_a(String)
    end
    expect { Candle::LLM.from_pretrained(path, kv_dtype: :int4) }.to raise_error(ArgumentError, /kv_dtype/)
    ["2 parsecs", -1, 0, 1.5].each do |given|
      expect { Candle::LLM.from_pretrained(path, kv_cache: given) }.to raise_error(ArgumentError, /kv_cache/)
    end
  end

  describe "when threads end before their time" do
    # Whatever may end a thread; each says whether it found one that was still at work.
    faults = {
      kill: ->(thread) { thread.alive?.tap { thread.kill } },
      raise: ->(thread) { thread.alive?.tap { thread.raise(IOError, "enough") if thread.alive? } },
      interrupt: ->(thread) { thread.alive?.tap { thread.raise(Interrupt) if thread.alive? } },
      timeout: ->(thread) { thread.alive?.tap { thread.raise(Timeout::Error) if thread.alive? } }
    }.freeze

    def started(llm, prompts, patience = {})
      prompts.each_with_index.map do |prompt, index|
        work = lambda do
          next llm.generate(prompt, **options(index)) unless index % 3 == 2

          llm.generate_stream(prompt, **options(index)).to_a.join
        end
        thread = Thread.new { patience[index] ? Timeout.timeout(patience[index]) { work.call } : work.call }
        thread.tap { thread.report_on_exception = false }
      end
    end

    # The text of a thread; nil where a fault came first.
    def text_of(thread)
      thread.value
    rescue IOError, Interrupt, Timeout::Error
      nil
    end

    # A thread that ends between two lines of Ruby leaves its run to the garbage collector.
    def at_rest(llm)
      counts = -> { llm.stats.values_at(:running, :waiting, :pages_used, :draft_pages_used) }
      3.times { GC.start unless counts.call.sum.zero? }
      counts.call
    end

    it "survives a thousand faults in its threads" do
      guessed = Candle::LLM.from_pretrained(path, device: "cpu", draft: llm)
      expected = texts_of(llm, prompts)
      random = Random.new(1)
      struck = faults.transform_values { 0 }
      cut = 0
      Timeout.timeout(300) do
        [llm, guessed].cycle do |model|
          break if struck.values.sum >= 1000

          victims = prompts.each_index.to_a.sample(5, random: random)
          patience = { victims.pop => random.rand * 0.02 }
          threads = started(model, prompts, patience)
          victims.each do |victim|
            sleep(random.rand * 0.003)
            kind = faults.keys.sample(random: random)
            struck[kind] += 1 if faults.fetch(kind).call(threads[victim])
          end
          found = threads.map { |thread| text_of(thread) }
          cut += found.count(nil)
          struck[:timeout] += 1 if found[patience.keys.first].nil?
          spared = prompts.each_index.to_a - victims - patience.keys
          expect(found.values_at(*spared)).to eq(expected.values_at(*spared))
          expect(found.zip(expected)).to all(satisfy { |text, whole| text.nil? || text == whole })
          expect(at_rest(model)).to eq([0, 0, 0, 0])
        end
      end
      expect(struck.values).to all(be > 100)
      expect(cut).to be > 500
      [llm, guessed].each do |model|
        expect(texts_of(model, prompts)).to eq(expected)
        limit = model.stats[:pages_free]
        model.clear_cache
        expect(model.stats.values_at(:pages_used, :pages_idle, :pages_free)).to eq([0, 0, limit])
      end
    end

    it "survives Ctrl-C in the main thread" do
      script = <<~RUBY
        require "candle"
        llm = Candle::LLM.from_pretrained(#{path.inspect}, device: "cpu")
        text = ->(index) { llm.generate("the dog is in a", temperature: 1.0, seed: index, max_length: 40) }
        expected = Array.new(16, &text)
        interrupted = 0
        40.times do |round|
          others = Array.new(15) { |index| Thread.new { text[index] } }
          Thread.new { sleep(0.0005 * (round % 10)); Process.kill(:INT, Process.pid) }
          begin
            loop { text[15] == expected[15] or abort("another text") }
          rescue Interrupt
            interrupted += 1
          end
          others.map(&:value) == expected.first(15) or abort("others suffered")
        end
        llm.stats[:pages_used].zero? or abort("pages were lost")
        puts interrupted
      RUBY
      output, errors, status = run_ruby(script)
      expect(status).to be_success, errors
      expect(output.to_i).to eq(40)
    end
  end

  it "lets a forked child generate on its own", if: Process.respond_to?(:fork) do
    expected = llm.generate("the dog is", temperature: 0, max_length: 12)
    busy = Array.new(4) do |index|
      Thread.new { loop { llm.generate(prompts[index], max_length: 40, temperature: 1.0) } }
    end
    sleep 0.1
    statuses = Array.new(6) do
      pid = fork do
        Thread.new { sleep(60) && exit!(9) }
        texts = Array.new(3) { Thread.new { llm.generate("the dog is", temperature: 0, max_length: 12) } }.map(&:value)
        exit!(texts == [expected] * 3 ? 0 : 1)
      end
      Process.wait2(pid).last.exitstatus
    end
    expect(statuses).to all(eq(0))
  ensure
    busy&.each { |thread| thread.kill.join }
  end

  it "lets texts under way end when the model is closed" do
    expected = texts_of(llm, prompts)
    threads = prompts.each_with_index.map do |prompt, index|
      Thread.new { llm.generate(prompt, **options(index)) }.tap { |thread| thread.report_on_exception = false }
    end
    sleep 0.02
    llm.close
    found = threads.map do |thread|
      thread.value
    rescue Candle::Error => e
      e.message
    end
    found.each_with_index { |text, index| expect(text).to eq(expected[index]).or(match(/closed/)) }
  end

  describe "for many prompts in one call" do
    it "gives the texts in the order of the prompts" do
      expected = prompts.map { |prompt| llm.generate(prompt, temperature: 0, max_length: 8) }
      seen = []
      found = llm.generate(prompts, temperature: 0, max_length: 8, progress: ->(done, total) { seen << [done, total] })
      expect(found).to eq(expected)
      expect(seen.last).to eq([16, 16])
      expect(llm.generate([])).to eq([])
      each = llm.generate_each(prompts.lazy, batch: 3, temperature: 0, max_length: 8)
      pairs = each.map { |prompt, completion| [prompt, completion.text] }
      expect(pairs).to eq(prompts.zip(expected))
      expect(llm.generate_each(prompts, temperature: 0, max_length: 8) { break :enough }).to eq(:enough)
      expect(llm.stats[:pages_used]).to eq(0)
    end

    it "names the index of what fails, and keeps the others' results" do
      bad = [*prompts.first(2), "the dog " * 40, "the"]
      expected = bad.values_at(0, 1, 3).map { |prompt| llm.generate(prompt, temperature: 0, max_length: 4) }
      expect { llm.generate(bad, temperature: 0, max_length: 4) }.to raise_error(Candle::BulkGenerationError) { |error|
        expect(error.message).to match(/prompts\[2\].*do not fit the context/)
        expect(error.results.values_at(0, 1, 3)).to eq(expected)
        expect(error.failures.keys).to eq([2])
      }
      seen = []
      expect do
        llm.generate_each(bad, temperature: 0, max_length: 4) { |prompt, _| seen << prompt }
      end.to raise_error(Candle::BulkGenerationError, /prompts\[2\]/)
      expect(seen).to eq(bad.values_at(0, 1, 3))
    end

    it "follows a schema with each" do
      schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"] }
      found = llm.generate_structured(prompts.first(5), schema: schema)
      expect(found.map(&:keys)).to eq([["ok"]] * 5)
    end

    it "takes what is enumerable, and says what isn't" do
      expect { llm.generate_each("the dog") }.to raise_error(Candle::InvalidInputError, /Enumerable/)
      expect { llm.generate_each(prompts, batch: 0) }.to raise_error(ArgumentError, /batch/)
      expect { llm.generate(["the", 3], max_length: 2) }.to raise_error(Candle::BulkGenerationError, /prompts\[1\]/)
    end
  end

  describe "with guesses" do
    it "gives the same text" do
      prompts.each_with_index do |prompt, index|
        long = ([prompt.split.first(2).join(" ")] * 3).join(" ")
        expected = llm.complete(long, **options(index))
        found = llm.complete(long, **options(index), speculative: :lookup)
        expect(found.token_ids).to eq(expected.token_ids)
        expect(found.text).to eq(expected.text)
      end
      stats = llm.stats
      expect(stats[:drafted]).to be > 0
      expect(stats[:accepted]).to be_between(0, stats[:drafted])
      expect { llm.generate("the", speculative: :magic) }.to raise_error(ArgumentError, /speculative/)
    end

    it "gives the same text with a smaller model" do
      twin = Candle::LLM.from_pretrained(path, device: "cpu")
      [twin, TinyModels.path("gguf-decoders/llama"), TinyModels.path("decoders/qwen2")].each do |draft|
        guessed = Candle::LLM.from_pretrained(path, device: "cpu", draft: draft)
        expected = prompts.each_with_index.map { |prompt, index| llm.complete(prompt, **options(index)).token_ids }
        found = prompts.each_with_index.map { |prompt, index| guessed.complete(prompt, **options(index)).token_ids }
        expect(found).to eq(expected)
        threads = prompts.each_with_index.map do |prompt, index|
          Thread.new { guessed.complete(prompt, **options(index)) }
        end
        expect(threads.map { |thread| thread.value.token_ids }).to eq(expected)
        expect(guessed.stats.values_at(:running, :waiting, :pages_used, :draft_pages_used)).to eq([0, 0, 0, 0])
        expect(guessed.stats[:drafted]).to be > 0
        drafted = guessed.stats[:drafted]
        expect(guessed.generate("the dog", temperature: 0, speculative: false)).to be_a(String)
        expect(guessed.stats[:drafted]).to eq(drafted)
      end
    end

    it "goes on when the smaller model is closed, and closes its own" do
      expected = llm.generate("the dog", temperature: 0, max_length: 30)
      twin = Candle::LLM.from_pretrained(path, device: "cpu")
      guessed = Candle::LLM.from_pretrained(path, device: "cpu", draft: twin)
      expect(guessed.draft).to be(twin)
      expect(guessed.generate("the dog", temperature: 0, max_length: 30)).to eq(expected)
      pieces = []
      guessed.generate_stream("the dog", temperature: 0, max_length: 30) do |piece|
        pieces << piece
        twin.close if pieces.size == 5
      end
      expect(pieces.join).to eq(expected)
      expect(guessed.generate("the dog", temperature: 0, max_length: 30)).to eq(expected)
      expect(guessed.stats.values_at(:pages_used, :draft_pages_used)).to eq([0, 0])
      expect { Candle::LLM.from_pretrained(path, draft: twin) }.to raise_error(Candle::Error, /closed/)

      owner = Candle::LLM.from_pretrained(path, device: "cpu", draft: path)
      owner.close
      expect(owner.draft).to be_closed
      lent = Candle::LLM.from_pretrained(path, device: "cpu")
      Candle::LLM.from_pretrained(path, device: "cpu", draft: lent).close
      expect(lent).not_to be_closed
    end

    it "refuses a smaller model of another vocabulary, and what is no model" do
      other = Candle::LLM.from_pretrained(path, device: "cpu", tokenizer: TinyModels.path("bert"))
      expect { Candle::LLM.from_pretrained(path, device: "cpu", draft: other) }
        .to raise_error(Candle::InvalidInputError, /draft: must be a model of the same vocabulary/)
      expect { Candle::LLM.from_pretrained(path, draft: 3) }.to raise_error(ArgumentError, /draft must be a model/)
      expect { llm.generate("the", speculative: :draft) }.to raise_error(ArgumentError, /load this one with draft:/)
      expect(llm.draft).to be_nil
    end

    it "takes what a schema leaves no choice of as a guess" do
      schema = { type: "object", properties: { description: { type: "boolean" } }, required: ["description"] }
      llm.generate_structured("the", schema: schema, temperature: 0)
      expect(llm.stats[:accepted]).to be > 0
    end
  end
end
