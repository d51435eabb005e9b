# frozen_string_literal: true

require "json"
require "timeout"
require "tmpdir"

RSpec.describe Candle::LLM do
  fixtures = TinyModels.path("decoders")
  greedy = Candle::GenerationConfig.deterministic(max_length: 12)

  # A tiny model with a chat template of its own.
  def chat_model(source)
    @directory = Dir.mktmpdir
    FileUtils.cp_r("#{source}/.", @directory)
    path = File.join(@directory, "tokenizer_config.json")
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}" \
               "{% if add_generation_prompt %}<assistant>{% endif %}"
    File.write(path, JSON.generate(JSON.parse(File.read(path)).merge("chat_template" => template)))
    described_class.from_pretrained(@directory)
  end

  after { FileUtils.rm_rf(@directory) if @directory }

  let(:llm) { described_class.from_pretrained(File.join(fixtures, "llama")) }

  it "counts the tokens that a call reads" do
    llm = ServedModels.models["llm"]
    ["the dog", "", [{ role: "user", content: "the dog" }]].each do |input|
      read = llm.complete(input, max_length: 1).usage.prompt_tokens unless input.empty?
      expect(llm.count_tokens(input)).to eq(read || llm.tokenizer.encode("").size)
    end
    bare = llm.count_tokens("the dog", add_special_tokens: false)
    expect(bare).to eq(llm.tokenizer.encode("the dog", add_special_tokens: false).size)
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    expect(llm.count_tokens([{ role: "user", content: "the dog" }], chat_template: template)).to eq(bare)
    expect { llm.count_tokens([]) }.to raise_error(Candle::InvalidInputError, /messages is empty/)
  end

  it "names a message without content" do
    llm = ServedModels.models["llm"]
    [[{ role: "user" }], [{ "role" => "user", "content" => nil }], [{ role: "assistant", content: nil }]]
      .each do |messages|
        expect { llm.chat(messages) }.to raise_error(Candle::InvalidInputError, /\Amessages\[0\] has no content/)
      end
    two = [{ role: "user", content: "hi" }, { role: :user }]
    expect { llm.chat(two) }.to raise_error(Candle::InvalidInputError, /\Amessages\[1\] has no content/)
    expect { llm.session(messages: two) }.to raise_error(Candle::InvalidInputError, /messages\[1\] has no content/)
  end

  it "says what it is" do
    expect(llm.model_info).to include(family: "llama", layers: 2, hidden_size: 32, max_length: 64)
    expect(llm.model_info[:parameters]).to be > 10_000
    expect(llm.inspect).to match(/\A#<Candle::LLM .*llama llama f32 on cpu>\z/)
    expect(llm.device).to eq(Candle::Device.cpu)
    expect(llm.dtype).to eq(:f32)
    unused = [Candle::BuildInfo.cuda_problem].compact.map { |problem| "cuda: #{problem}" }
    expect(llm.device_report).to include(actual: "cpu", dtype: "f32", fallbacks: unused)
    expect(llm.eos_token).to eq("</s>")
    expect(llm.context_length).to eq(64)
  end

  Dir.children(fixtures).sort.each do |name|
    it "gives the log probabilities of transformers with #{name}" do
      folder = File.join(fixtures, name)
      model = described_class.from_pretrained(folder)
      record = JSON.parse(File.read(File.join(folder, "expected.json")))
      expected = Candle::Weights.open(File.join(folder, "expected.safetensors"))
      record["sequences"].each_with_index do |ids, index|
        reference = expected.tensor("logprobs.#{index}").to_a
        model.__send__(:_logprobs, ids, nil).zip(reference) { |got, wanted| expect(got).to be_within(1e-3).of(wanted) }
      end
    end
  end

  it "streams what adds up to the text" do
    pieces = []
    text = llm.generate_stream("the dog is", config: greedy) { |piece| pieces << piece }
    expect(pieces.join).to eq(text)
    expect(text).to eq(llm.generate("the dog is", config: greedy))
    expect(pieces).to all(be_valid_encoding)
    expect(llm.generate_stream("the dog is", config: greedy).to_a).to eq(pieces)
  end

  it "tells a block of two parameters the tokens of each piece" do
    told = []
    completion = llm.complete("the dog is", config: greedy, logprobs: 2) { |piece, tokens| told << [piece, tokens] }
    expect(told.map(&:first).join).to eq(completion.text)
    tokens = told.flat_map(&:last)
    expect(tokens).to eq(completion.logprobs.first(tokens.size))
    expect(tokens.size).to be_between(completion.logprobs.size - 1, completion.logprobs.size)
    pieces = []
    llm.complete("the dog is", config: greedy, logprobs: 2) { |piece| pieces << piece }
    llm.complete("the dog is", config: greedy, logprobs: 2, &pieces.method(:push))
    expect(pieces).to eq(told.map(&:first) * 2)
  end

  it "completes with everything known of the run" do
    completion = llm.complete("the dog is", config: greedy, logprobs: 2)
    expect(completion).to be_frozen
    expect(completion.usage.to_h).to eq(prompt_tokens: 3, completion_tokens: 12, cached_tokens: 0)
    expect(completion.token_ids.size).to eq(12)
    expect(completion.finish_reason).to eq(:length)
    expect(completion.timings.prompt_ms).to be > 0
    expect(llm.tokenizer.decode(completion.token_ids)).to eq(completion.text)
    first = completion.logprobs.first
    expect(first[:top].map { |entry| entry[:id] }.first).to eq(first[:id])
    expect(first[:logprob]).to be < 0
  end

  it "gives the same text for the same seed" do
    texts = [1, 1, 2].map { |seed| llm.generate("the", max_length: 20, temperature: 1.0, seed: seed) }
    expect(texts[0]).to eq(texts[1])
    expect(texts[0]).not_to eq(texts[2])
  end

  it "ends before a stop sequence, shown in no part" do
    whole = llm.generate("the dog is", config: greedy)
    stop = whole[3, 2]
    pieces = []
    completion = llm.complete("the dog is", config: greedy, stop_sequences: [stop]) { |piece| pieces << piece }
    expect(completion.text).to eq(whole[0...whole.index(stop)])
    expect(pieces.join).to eq(completion.text)
    expect(completion.finish_reason).to eq(:stop_sequence)
  end

  it "includes the prompt when asked" do
    expect(llm.generate("the dog", config: greedy, include_prompt: true)).to start_with("the dog")
  end

  it "reuses what it read when told to keep it" do
    llm.complete("the dog is in the", config: greedy, reset_cache: false)
    again = llm.complete("the dog is in a", config: greedy, reset_cache: false)
    expect(again.usage.cached_tokens).to be >= 4
    expect(again.text).to eq(llm.generate("the dog is in a", config: greedy))
  end

  it "forgets what it read when told to" do
    read = ->(**options) { llm.complete("the dog is in the", config: greedy, **options) }
    expected = read.call
    again = [{}, { reset_cache: true }, { reset_cache: false }].map { |options| read.call(**options) }
    expect(again.map { |completion| completion.usage.cached_tokens }).to all(be >= 4)
    llm.generate("a fox jumps over", config: greedy)
    expect(llm.stats[:pages_idle]).to eq(2)
    expect(read.call(reset_cache: :all)).to have_attributes(text: expected.text,
                                                            usage: have_attributes(cached_tokens: 0))
    expect(llm.stats.values_at(:pages_used, :pages_idle)).to eq([0, 1])
    expect(read.call.usage.cached_tokens).to be >= 4
    llm.generate(["a fox jumps over"], config: greedy, reset_cache: :all)
    expect(llm.stats[:pages_idle]).to eq(1)
    expect(read.call.usage.cached_tokens).to be < 4
    expect { read.call(reset_cache: :maybe) }.to raise_error(ArgumentError, /reset_cache must be true, false or :all/)
  end

  it "forgets what it read while other threads generate" do
    llm.generate("a fox jumps over", config: greedy)
    stop = false
    busy = Thread.new { llm.generate("the dog is", temperature: 0, max_length: 40, reset_cache: false) until stop }
    sleep 0.02
    Timeout.timeout(30) do
      20.times do
        llm.complete("the lazy fox", config: greedy)
        llm.clear_cache
        fresh = llm.complete("the lazy fox", config: greedy, reset_cache: :all)
        expect(fresh.usage.cached_tokens).to eq(0)
      end
    end
    stop = true
    busy.join
    llm.clear_cache
    expect(llm.stats.values_at(:pages_used, :pages_idle)).to eq([0, 0])
  end

  it "stops at break and at an exception, and goes on afterwards" do
    expected = llm.generate("the dog", config: greedy)
    llm.generate_stream("the dog", config: greedy) { break }
    expect { llm.generate_stream("the dog", config: greedy) { raise "enough" } }.to raise_error("enough")
    expect(llm.generate("the dog", config: greedy)).to eq(expected)
  end

  it "is interrupted by Timeout" do
    started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    expect { Timeout.timeout(0.05) { loop { llm.generate("the dog", max_length: 40) } } }.to raise_error(Timeout::Error)
    expect(Process.clock_gettime(Process::CLOCK_MONOTONIC) - started).to be < 1
  end

  it "says when the context is full, or rolls when asked" do
    long = "the dog " * 40
    expect { llm.generate(long) }.to raise_error(Candle::InvalidInputError, /do not fit the context of 64/)
    expect(llm.complete(long, config: greedy, context_overflow: :roll).token_ids.size).to eq(12)
    expect(llm.complete("the", config: greedy, max_length: 100, stop_sequences: []).finish_reason).to eq(:length)
    rolled = llm.complete("the", config: greedy, max_length: 100, context_overflow: :roll)
    expect([100, :stop]).to include(rolled.token_ids.size).or include(rolled.finish_reason)
    expect { llm.generate("the", context_overflow: :burst) }.to raise_error(ArgumentError, /:error or :roll/)
  end

  it "chats through the checkpoint's template, and refuses to guess one" do
    expect { llm.chat([{ role: "user", content: "hi" }]) }.to raise_error(Candle::Error, /chat template/)
    model = chat_model(File.join(fixtures, "llama"))
    messages = [{ role: "user", content: "the dog" }]
    expect(model.apply_chat_template(messages)).to eq("<user>the dog\n<assistant>")
    expect(model.chat(messages,
                      config: greedy)).to eq(model.chat([{ "role" => "user", "content" => "the dog" }], config: greedy))
    expect(model.chat_stream(messages, config: greedy).to_a.join).to eq(model.chat(messages, config: greedy))
  end

  it "chats through another template that is given" do
    template = "{% for m in messages %}({{ m.content }}){% endfor %}"
    messages = [{ role: "user", content: "the dog" }]
    expect(llm.apply_chat_template(messages, chat_template: template)).to eq("(the dog)")
    expected = llm.complete("(the dog)", config: greedy, add_special_tokens: false).text
    expect(llm.chat(messages, config: greedy, chat_template: template)).to eq(expected)
    expect(llm.session(chat_template: template).say("the dog", config: greedy)).to eq(expected)
    expect(llm.chat_with_tools(messages, tools: [], config: greedy, chat_template: template).raw_response)
      .to eq(expected)
  end

  it "refuses a conversation without messages" do
    model = chat_model(File.join(fixtures, "llama"))
    expect { model.chat([]) }.to raise_error(Candle::InvalidInputError, /messages is empty: pass at least one/)
    expect { model.complete([]) }.to raise_error(Candle::InvalidInputError, /messages is empty/)
    expect { model.chat("hi") }
      .to raise_error(Candle::InvalidInputError, /messages must be an Array of Hashes, not "hi"/)
  end

  it "writes what a text begins with once" do
    beginning = llm.tokenizer.get_special_tokens.fetch("bos_token")
    token = llm.tokenizer.id_to_token(beginning)
    adds = llm.tokenizer.encode("the dog").first == beginning
    count = ->(prompt, **options) { llm.complete(prompt, config: greedy, **options).usage.prompt_tokens }
    plain = count.call("the dog", add_special_tokens: false)
    expect(count.call("the dog")).to eq(plain + (adds ? 1 : 0))
    expect(count.call("#{token}the dog")).to eq(count.call("#{token}the dog", add_special_tokens: false))
    expect(count.call("#{token}the dog", add_special_tokens: true))
      .to eq(count.call("#{token}the dog") + (adds ? 1 : 0))
  end

  it "takes a Hash for a config" do
    expect(llm.generate("the dog", config: { "temperature" => 0, max_tokens: 12 }))
      .to eq(llm.generate("the dog", config: greedy))
    schema = { type: "boolean" }
    expect(llm.generate_structured("x", schema: schema, config: { max_length: 20 })).to be(true).or be(false)
    expect { llm.generate("the dog", config: 3) }.to raise_error(ArgumentError, /GenerationConfig or a Hash, not 3/)
  end

  it "gives completions that are values" do
    one, other = Array.new(2) { llm.complete("the dog", config: greedy) }
    expect(one).to eq(other).and eql(other)
    expect([one, other].uniq.size).to eq(1)
    expect(one).not_to eq(llm.complete("the", config: greedy))
    case one
    in { finish_reason: Symbol => reason, usage: { completion_tokens: Integer => count } }
      expect([reason, count]).to eq([:length, 12])
    end
    expect(JSON.parse(one.to_json)).to include("text" => one.text, "finish_reason" => "length")
  end

  it "goes on from messages, and saves and loads a conversation" do
    model = chat_model(File.join(fixtures, "llama"))
    first = model.session(system: "is")
    first.say("the", config: greedy, max_length: 4)
    expect(first.completion.text).to eq(first.messages.last[:content])
    expect(first.usage).to have_attributes(completion_tokens: 4)
    file = File.join(@directory, "session.json")
    expect(first.save(file)).to be(first)
    sessions = [first, model.session(messages: first.messages), Candle::Session.load(model, file),
                Candle::Session.new(model, messages: JSON.parse(JSON.generate(first.messages)))]
    expect(sessions.map { |session| session.say("dog", config: greedy, max_length: 4) }.uniq.size).to eq(1)
    expect(sessions.map(&:messages).uniq.size).to eq(1)
    File.write(file, "[]")
    expect { Candle::Session.load(model, file) }.to raise_error(Candle::InvalidInputError, /is not a saved session/)
    expect { model.session(messages: ["hi"]) }.to raise_error(Candle::InvalidInputError, /messages\[0\] must be a Hash/)
  end

  it "says that it can't be copied or marshalled" do
    { llm => /load it there/, llm.tokenizer => /load it there/, Candle::Device.cpu => /Device.parse/,
      Candle::DType.parse(:f32) => /DType.parse/ }
      .each do |object, advice|
        expect { object.dup }.to raise_error(Candle::Error, /#{object.class} can't be copied: share this one/)
        expect { object.clone }.to raise_error(Candle::Error, /can't be copied/)
        expect { Marshal.dump(object) }.to raise_error(Candle::Error, advice)
      end
    expect { Marshal.dump(Candle::Tensor.new([1.0])) }.to raise_error(Candle::Error, /Tensor.from_packed/)
  end

  it "keeps a session's cache, rolls back, and runs sessions in threads" do
    model = chat_model(File.join(fixtures, "llama"))
    answers = lambda do |session|
      [session.say("the", config: greedy, max_length: 4), session.say("dog", config: greedy, max_length: 4)]
    end
    alone = answers.call(model.session(system: "is"))
    threads = Array.new(4) { Thread.new { answers.call(model.session(system: "is")) } }
    expect(threads.map(&:value)).to all(eq(alone))
    session = model.session(system: "is")
    session.say("the", config: greedy, max_length: 4)
    session.say("no", config: greedy, max_length: 4)
    expect(session.rollback.map { |message| message[:role] }).to eq(%w[user assistant])
    expect(session.say("dog", config: greedy, max_length: 4)).to eq(alone.last)
    expect(session.messages.map { |message| message[:role] }).to eq(%w[system user assistant user assistant])
  end

  it "refuses to go on with a session in the middle of its answer" do
    session = chat_model(File.join(fixtures, "llama")).session
    answers = [-> { session.say("dog") }, -> { session.rollback }, -> { Fiber.new { session.say("dog") }.resume }]
    answers.each do |answer|
      expect { session.say("the", config: greedy) { answer.call } }
        .to raise_error(Candle::InvalidInputError, /this session is still answering/)
    end
    expect { session.say("the", config: greedy) { raise ThreadError, "mine" } }.to raise_error(ThreadError, "mine")
    expect(session.say("the", config: greedy, max_length: 4)).to be_a(String)
    expect(session.messages.size).to eq(2)
  end

  it "works when it is frozen" do
    frozen = described_class.from_pretrained(File.join(fixtures, "llama"), device: "cpu").freeze
    expect(frozen.generate("the", config: greedy)).to eq(llm.generate("the", config: greedy))
    expect([frozen.tokenizer, frozen.model_info, frozen.device]).to all(be_truthy)
    expect { frozen.use_adapter(nil) }.to raise_error(FrozenError)
  end

  it "measures perplexity" do
    entries = llm.logprobs("the dog is in")
    expect(entries.first[:logprob]).to be_nil
    values = entries.drop(1).map { |entry| entry[:logprob] }
    expect(llm.perplexity("the dog is in")).to be_within(1e-6).of(Math.exp(-values.sum / values.size))
    expect { llm.perplexity("the") }.to raise_error(Candle::InvalidInputError, /two tokens/)
  end

  it "measures the divergence from another model" do
    other = described_class.from_pretrained(File.join(fixtures, "qwen3"), device: "cpu")
    text = "the dog is in"
    expect(llm.kl_divergence(text, reference: llm)).to eq({ mean: 0.0, max: 0.0, same_token: 1.0 })
    found = llm.kl_divergence(text, reference: other)
    expect(found[:max]).to be >= found[:mean]
    expect(found[:mean]).to be > 1e-4
    expect { llm.kl_divergence("the", reference: other) }.to raise_error(Candle::InvalidInputError, /two tokens/)
    expect { llm.kl_divergence(text, reference: "other") }.to raise_error(ArgumentError, /must be a Candle::LLM/)
  end

  it "takes a positional device and refuses unknown keywords" do
    expect(described_class.from_pretrained(File.join(fixtures, "llama"), "cpu").device.kind).to eq(:cpu)
    expect { llm.generate("a", config: nil) }.to raise_error(ArgumentError, /config must be .* not nil/)
    expect { described_class.from_pretrained(fixtures, devise: 1) }.to raise_error(ArgumentError)
    expect { llm.generate("the", temprature: 1) }.to raise_error(ArgumentError, /temprature/)
    expect { llm.generate(nil) }.to raise_error(Candle::InvalidInputError)
  end

  it "registers tokenizers for models that bring none" do
    described_class.register_tokenizer(/my-model/, "me/tokenizer")
    expect(described_class.guess_tokenizer("org/my-model-7b")).to eq("me/tokenizer")
    expect(described_class.guess_tokenizer("org/model-GGUF")).to eq("org/model")
  ensure
    described_class::TOKENIZER_REGISTRY.delete(/my-model/)
  end

  it "takes the registered tokenizer for a file that carries none" do
    file = File.join(TinyModels.path("gguf-decoders/llama"), "model.gguf")
    Dir.mktmpdir do |directory|
      bare = File.join(directory, "no-tokens-model.gguf")
      # Another name for the same key: the file has no tokens any more.
      File.binwrite(bare, File.binread(file).sub("tokenizer.ggml.tokens", "tokenizer.ggml.tokenz"))
      expect { described_class.from_pretrained(bare) }.to raise_error(Candle::TokenizerError, /carries no tokenizer/)
      described_class.register_tokenizer(/no-tokens-model/, File.join(fixtures, "llama"))
      expect(described_class.from_pretrained(bare).generate("the dog", config: greedy))
        .to eq(described_class.from_pretrained(file).generate("the dog", config: greedy))
    end
  ensure
    described_class::TOKENIZER_REGISTRY.delete(/no-tokens-model/)
  end

  it "ends at each of several end tokens" do
    ids = llm.complete("the dog is", config: greedy).token_ids
    Dir.mktmpdir do |directory|
      FileUtils.cp_r("#{fixtures}/llama/.", directory)
      File.write(File.join(directory, "generation_config.json"), JSON.generate(eos_token_id: [1, ids[4]]))
      model = described_class.from_pretrained(directory)
      expect(model.model_eos_tokens).to contain_exactly("</s>", llm.tokenizer.id_to_token(ids[4]))
      completion = model.complete("the dog is", config: greedy)
      expect(completion.token_ids).to eq(ids.take(ids.index(ids[4]) + 1))
      expect(completion.finish_reason).to eq(:stop)
    end
  end

  it "forgets what it kept, and knows its name" do
    llm.complete("the dog is in the", config: greedy, reset_cache: false)
    llm.clear_cache
    expect(llm.complete("the dog is in the", config: greedy, reset_cache: false).usage.cached_tokens).to eq(0)
    expect(llm.model_name).to eq(llm.model_id)
    expect(described_class.from_pretrained(File.join(fixtures, "llama"), context_length: 16).context_length).to eq(16)
  end

  it "refuses an encoder" do
    path = TinyModels.path("bert")
    expect do
      described_class.from_pretrained(path)
    end.to raise_error(Candle::UnsupportedModelError, /"bert" is not a language model/)
  end
end
