# frozen_string_literal: true

require "fileutils"
require "timeout"
require "tmpdir"

RSpec.describe Candle::Seq2Seq do
  def load(name)
    described_class.from_pretrained(TinyModels.path("seq2seq/#{name}"), device: "cpu")
  end

  let(:model) { load("t5") }
  let(:record) { TinyModels.record("seq2seq/t5") }
  let(:text) { "the quick brown fox jumps over the lazy dog" }

  # What threads come to, which must not take for ever.
  def values(threads)
    Timeout.timeout(60) { threads.map(&:value) }
  end

  # A case of the reference in our words: lengths are numbers of new tokens here.
  def options(settings)
    settings.except("bad_words_ids", "suppress_tokens", "begin_suppress_tokens").to_h do |name, value|
      [name.to_sym, %w[max_length min_length].include?(name) ? value - 1 : value]
    end
  end

  %w[t5 flan-t5 mt5 bart pegasus marian m2m100 nllb].each do |name|
    it "writes the tokens that transformers writes by #{name}, with beams and without" do
      record = TinyModels.record("seq2seq/#{name}")
      model = load(name)
      record["cases"].each_with_index do |settings, number|
        next if settings.key?("bad_words_ids")

        found = model.send(:completions_of, record["texts"], nil, options(settings), to: record["target"])
        expect(found.map(&:token_ids)).to eq(record["generated"][number]), "#{name} #{settings}"
      end
    end
  end

  it "gives one text for a String and several for an Array", :gc_stress do
    record = self.record
    one = model.generate(text, max_length: 13)
    expect(one).to eq(model.tokenizer.decode(record["generated"][0][1]))
    expect(model.generate([text, "a"], max_length: 13).first).to eq(one)
    expect(model.generate([])).to eq([])
    expect(model.generate(Array.new(40, text), max_length: 2).uniq.size).to eq(1)
  end

  it "streams what it returns" do
    pieces = []
    whole = model.generate_stream(text, max_length: 8) { |piece| pieces << piece }
    expect(pieces.join).to eq(whole)
    expect(whole).to eq(model.generate(text, max_length: 8))
    expect(model.generate_stream(text, max_length: 8).to_a.join).to eq(whole)
    beams = []
    whole = model.generate_stream(text, num_beams: 3, max_length: 8) { |piece| beams << piece }
    expect(beams).to eq([whole])
    expect(model.generate_stream(text, max_length: 8) { break :stopped }).to eq(:stopped)
  end

  it "tells all there is to know of a run" do
    completion = model.complete(text, max_length: 3, min_length: 3, logprobs: 2)
    expect(completion.finish_reason).to eq(:length)
    expect(completion.usage.prompt_tokens).to eq(record["ids"][1].size)
    expect(completion.usage.completion_tokens).to eq(3)
    expect(completion.logprobs.first.keys).to eq(%i[token id logprob top])
    expect(completion.timings.prompt_ms).to be_positive
    ended = model.complete("a", num_beams: 3, max_length: 11)
    expect(ended).to be_frozen
    expect(%i[stop length]).to include(ended.finish_reason)
  end

  it "tells of tasks and of several texts at once" do
    expect(model.complete([text, "a"], max_length: 4).map(&:text)).to eq(model.generate([text, "a"], max_length: 4))
    expect(model.complete(text, task: :summarize).text).to eq(model.summarize(text))
    pieces = []
    german = model.complete(text, task: "translate", to: "de", num_beams: 1, max_length: 5) { |piece| pieces << piece }
    expect([german.text, pieces.join]).to all(eq(model.translate(text, to: "de", num_beams: 1, max_length: 5)))
    expect([model.usual_length, model.usual_length(task: :summarize)]).to eq([512, 11])
    expect { model.complete([text]) { |piece| piece } }.to raise_error(ArgumentError, /a single text/)
    expect { model.complete(text, to: "de") }.to raise_error(ArgumentError, /task: :translate/)
    expect { model.complete(text, task: :sing) }.to raise_error(ArgumentError, /task must be one of/)
  end

  it "counts the tokens that a call reads" do
    [[text, {}], [text, { task: :summarize }], [text, { task: "translate", from: "en", to: "de" }], ["dog " * 999, {}]]
      .each do |input, task|
        read = model.complete(input, max_length: 1, **task).usage.prompt_tokens
        expect(model.count_tokens(input, **task)).to eq(read)
      end
    nllb = described_class.from_pretrained(TinyModels.path("seq2seq/nllb"))
    french = { task: :translate, from: "eng_Latn", to: "fra_Latn" }
    expect(nllb.count_tokens(text, **french)).to eq(nllb.complete(text, max_length: 1, **french).usage.prompt_tokens)
  end

  it "samples by a seed" do
    texts = Array.new(2) { model.generate(text, temperature: 1.2, seed: 7, max_length: 8) }
    expect(texts.uniq.size).to eq(1)
    config = Candle::GenerationConfig.creative(seed: 1, max_length: 8)
    expect(model.generate(text, config: config)).to eq(model.generate(text, config: config))
    drawn = Array.new(6) { |seed| model.generate(text, temperature: 1.5, seed: seed, max_length: 8) }
    expect(drawn.uniq.size).to be > 1
  end

  it "follows schemas and patterns, and ends at stop sequences" do
    schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"] }
    bart = load("bart")
    expect([true, false]).to include(bart.generate_structured(text, schema: schema).fetch("ok"))
    expect(bart.generate_structured([text, "a"], schema: schema).map(&:keys)).to eq([["ok"], ["ok"]])
    expect(model.generate([text, "a"], pattern: /[a-c]{3}/)).to all(match(/\A[a-c]{3}\z/))
    expect(model.generate_regex(text, pattern: /[a-c]{3}/)).to match(/\A[a-c]{3}\z/)
    expect(model.generate(text, pattern: /(dog|fox)/)).to match(/\A(dog|fox)\z/)
    expect { bart.generate_structured(text, schema: schema, max_length: 2) }
      .to raise_error(Candle::StructuredOutputError)
    expect { model.generate(text, pattern: /a/, num_beams: 2) }
      .to raise_error(Candle::InvalidInputError, /num_beams: 1/)
    whole = model.generate(text, max_length: 12, min_length: 12)
    stop = whole[2, 2]
    cut = model.complete(text, max_length: 12, min_length: 12, stop_sequences: [stop])
    expect([cut.text, cut.finish_reason]).to eq([whole[0, whole.index(stop)], :stop_sequence])
  end

  it "summarizes with the checkpoint's prefix and settings, unless told otherwise" do
    settings = { no_repeat_ngram_size: 3, length_penalty: 2.0, early_stopping: true }
    expected = model.generate("summarize: #{text}", num_beams: 3, max_length: 11, min_length: 3, **settings)
    expect(model.summarize(text)).to eq(expected)
    expect(model.summarize([text])).to eq([expected])
    greedy = model.generate("summarize: #{text}", max_length: 5, min_length: 5, **settings)
    expect(model.summarize(text, max_length: 5, min_length: 5, num_beams: 1)).to eq(greedy)
    bart = load("bart")
    expect(bart.summarize(text)).to eq(bart.generate(text, num_beams: 4))
  end

  it "translates by T5's prefixes" do
    expected = model.generate("translate English to German: #{text}", num_beams: 2, max_length: 9)
    [{ from: "en", to: "de" }, { to: :de }, { from: "English", to: "German" }].each do |languages|
      expect(model.translate(text, **languages)).to eq(expected)
    end
    expect { model.translate(text, to: "fr") }.to raise_error(Candle::InvalidInputError, /en to de/)
  end

  it "translates by the tokens of languages" do
    nllb = load("nllb")
    record = TinyModels.record("seq2seq/nllb")
    expect(nllb.languages).to eq(%w[deu_Latn eng_Latn fra_Latn])
    expect(nllb.translate(record["texts"].first(3), to: "fra_Latn", max_length: 13))
      .to eq(record["decoded"].first(3))
    expect(nllb.translate(text, from: "deu_Latn", to: "fra_Latn")).to be_a(String)
    expect { nllb.translate(text) }.to raise_error(Candle::InvalidInputError, /to:/)
    expect { nllb.translate(text, to: "tlh_Latn") }.to raise_error(Candle::InvalidInputError, /"tlh_Latn".*deu_Latn/)
    expect(load("m2m100").languages).to include("en", "fr", "zu").and have_attributes(size: 100)
  end

  it "translates by Marian's models, of one pair and of several" do
    marian = load("marian")
    expect(marian.translate(text)).to eq(marian.generate(text, num_beams: 2))
    expect(marian.translate(text, to: "fra")).to eq(marian.generate(">>fra<< #{text}", num_beams: 2))
    expect { marian.translate(text, to: "tlh") }.to raise_error(Candle::InvalidInputError, /deu, fra/)
    expect do
      load("bart").translate(text, to: "de")
    end.to raise_error(Candle::InvalidInputError, /no languages to choose from/)
  end

  it "says what is wrong with a call" do
    { num_beams: 0, no_repeat_ngram_size: -1, min_length: 1.5, length_penalty: "x", early_stopping: 3, beams: 2,
      include_prompt: true }.each do |name, value|
      expect { model.generate(text, name => value) }.to raise_error(ArgumentError, /#{name}/)
    end
    expect { model.generate(7) }.to raise_error(Candle::InvalidInputError)
    expect { model.generate(text, num_beams: 2, temperature: 1) }
      .to raise_error(Candle::InvalidInputError, /temperature/)
    expect { described_class.from_pretrained(TinyModels.path("bert")) }
      .to raise_error(Candle::UnsupportedModelError, /"bert" is not an encoder-decoder that red-candle \S+ can run/)
    expect { Candle::LLM.from_pretrained(TinyModels.path("seq2seq/t5")) }
      .to raise_error(Candle::UnsupportedModelError, /encoder-decoder: load it with Seq2Seq/)
  end

  it "is a model like the others" do
    expect(model.model_info).to include(family: "t5", layers: 5, hidden_size: 32)
    expect(model.device_report[:kernels].keys).to include("attention", "linear", "rms_norm")
    expect(model.inspect).to match(/Seq2Seq .*t5 f32 on cpu/)
    expect(model.warm_up).to be(model)
    expect(Candle::DeviceUtils.supports_model?("cpu", :t5)).to be(true)
    expect(Candle::ModelKind.of(model.model_id)).to eq(:seq2seq)
    expect(Candle::ModelKind.of_model(model)).to eq(:seq2seq)
    before = model.stats
    model.generate([text, "a"], num_beams: 2, max_length: 3, min_length: 3)
    after = model.stats
    expect(after.slice(:running, :waiting)).to eq(running: 0, waiting: 0)
    grown = %i[batches tokens_out].map { |name| after[name] - before[name] }
    expect(grown).to eq([3, 6])
    expect(after[:tokens_in] - before[:tokens_in]).to eq(record["ids"].values_at(0, 1).sum(&:size))
    model.close
    expect { model.generate(text) }.to raise_error(Candle::Error, /closed/)
  end

  it "runs from many threads, and its results are those of single calls" do
    texts = record["texts"].first(4)
    expected = texts.map { |one| model.generate(one, num_beams: 2, max_length: 8) }
    found = values(texts.map { |one| Thread.new { model.generate(one, num_beams: 2, max_length: 8) } })
    expect(found).to eq(expected)
    long = { max_length: 2000, min_length: 2000 }
    expect { Timeout.timeout(0.2) { model.generate([text] * 32, **long) } }.to raise_error(Timeout::Error)
    expect(model.generate(texts.last, num_beams: 2, max_length: 8)).to eq(expected.last)
  end

  it "writes what threads ask for in one batch, each as alone" do
    texts = record["texts"]
    calls = Array.new(16) do |index|
      own = [{}, { temperature: 1.0, seed: index }, { num_beams: 3 }, { pattern: "[a-z]{40}" }][index % 4]
      [texts[index % texts.size], { max_length: 40, min_length: index % 4 == 3 ? 0 : 20 + index, **own }]
    end
    expected = calls.map { |text, options| model.generate(text, **options) }
    before = model.stats
    found = values(calls.map { |text, options| Thread.new { model.generate(text, **options) } })
    expect(found).to eq(expected)
    batches, written = %i[batches tokens_out].map { |name| model.stats[name] - before[name] }
    # Threads begin one after the other; most of their tokens are computed with others all the same.
    expect(batches * 5).to be < written * 4
    streamed = calls.map { |text, options| Thread.new { model.generate_stream(text, **options).to_a.join } }
    expect(values(streamed)).to eq(expected)
    expect(model.stats.slice(:running, :waiting)).to eq(running: 0, waiting: 0)
  end

  it "goes on for the others when threads are killed, time out or fail" do
    script = <<~RUBY
      require "timeout"
      model = Candle::Seq2Seq.from_pretrained(#{TinyModels.path("seq2seq/t5").inspect}, device: "cpu")
      texts = #{record["texts"].inspect}
      short, long = [30, 400].map { |length| { min_length: length, max_length: length } }
      expected = texts.map { |text| model.generate(text, **short) }
      random = Random.new(4)
      endings = Hash.new(0)
      40.times do |round|
        tokens = random.rand(30)
        fault = [
          -> { model.generate(texts, **long, num_beams: 2) && :over },
          -> { Timeout.timeout(random.rand / 50) { model.generate(texts, **long, num_beams: 2) } && :over },
          -> { model.generate_stream(texts[1], **long) { (tokens -= 1).positive? or raise(IOError) } }
        ][round % 3]
        victim = Thread.new do
          fault.call
        rescue IOError, Timeout::Error => e
          e.class
        end
        others = texts.map { |text| Thread.new { model.generate(text, **short) } }
        if round % 3 == 0
          sleep(random.rand / 50)
          victim.kill
        end
        others.map(&:value) == expected or abort("others suffered")
        endings[victim.value] += 1
      end
      model.stats.slice(:running, :waiting) == { running: 0, waiting: 0 } or abort("somebody is left")
      p endings.values_at(nil, Timeout::Error, IOError)
    RUBY
    # More threads than cores, so that what can wait for each other does.
    output, errors, status = run_ruby(script, { "RAYON_NUM_THREADS" => "8" }, within: 120)
    expect(status).to be_success, "#{status.inspect}: #{errors}"
    expect(output).to eq("[14, 13, 13]\n")
  end

  it "writes in forked processes", if: Process.respond_to?(:fork) do
    expected = model.generate(text, num_beams: 2, max_length: 6)
    pid = fork do
      Thread.new { sleep(60) && exit!(9) }
      exit!(model.generate(text, num_beams: 2, max_length: 6) == expected ? 0 : 1)
    end
    expect(Process.wait2(pid).last.exitstatus).to eq(0)
  end
end
