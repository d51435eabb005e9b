# frozen_string_literal: true

require "pathname"

RSpec.describe "LoRA adapters" do
  greedy = Candle::GenerationConfig.deterministic(max_length: 16)
  prompt = "the dog is"

  let(:model) do
    Candle::LLM.from_pretrained(TinyModels.path("gguf-decoders/llama"), device: "cpu", adapters: {
                                  one: TinyModels.path("adapters/llama"),
                                  "two" => Pathname(TinyModels.path("adapters/llama-patterns"))
                                })
  end

  def said(model, text, config, adapter)
    model.use_adapter(adapter)
    model.generate(text, config: config)
  end

  it "say what peft says, on dense and on GGUF bases" do
    %w[llama llama-patterns llama-embeddings qwen2 phi3 gpt2 gpt-neox].each do |name|
      record = TinyModels.record("adapters/#{name}")
      reference = Candle::Weights.open(File.join(TinyModels.path("adapters/#{name}"), "expected.safetensors"))
      %w[decoders gguf-decoders].each do |kind|
        adapters = { it: TinyModels.path("adapters/#{name}") }
        base = TinyModels.path("#{kind}/#{record["base"]}")
        llm = Candle::LLM.from_pretrained(base, device: "cpu", adapters: adapters)
        found = llm.__send__(:_logprobs, record["sequences"].last, "it")
        expect(found).to be_near(reference.tensor("logprobs.4").to_a, 1e-3)
      end
    end
  end

  it "are switched by name, and back to the base" do
    expect(model.adapters).to eq(%w[one two])
    expect(model.active_adapter).to be_nil
    base = model.generate(prompt, config: greedy)
    texts = [:one, "two", nil].map { |name| said(model, prompt, greedy, name) }
    expect(texts.uniq.size).to eq(3)
    expect(texts.last).to eq(base)
    expect(model.use_adapter(:one).active_adapter).to eq("one")
    expect(model.generate(prompt, config: greedy, adapter: nil)).to eq(base)
    expect(model.generate(prompt, config: greedy, adapter: :two)).to eq(texts[1])
    expect(model.perplexity(prompt)).not_to eq(model.use_adapter(nil).perplexity(prompt))
  end

  it "do not read what another one has cached" do
    texts = [:one, :two, nil].to_h { |name| [name, said(model, prompt, greedy, name)] }
    model.clear_cache
    [:one, :two, nil].each do |name|
      completion = model.complete(prompt, config: greedy, reset_cache: false, adapter: name)
      expect(completion.text).to eq(texts[name])
      expect(completion.usage.cached_tokens).to eq(0)
    end
    expect(model.complete(prompt, config: greedy, reset_cache: false, adapter: :one).usage.cached_tokens).to be > 0
  end

  it "belong to their sessions, in threads too" do
    names = [nil, :one, :two]
    answers = names.map { |name| model.session(adapter: name).say("dog", config: greedy) }
    expect(answers.uniq.size).to eq(3)
    sessions = names.map { |name| model.session(adapter: name) }
    threads = sessions.map { |session| Thread.new { session.say("dog", config: greedy) } }
    20.times { |turn| model.use_adapter(names[turn % 3]) }
    expect(threads.map(&:value)).to eq(answers)
    expect(model.use_adapter(:two).session.adapter).to eq("two")
  end

  it "are refused clearly where they do not fit" do
    load = lambda do |base, adapter|
      Candle::LLM.from_pretrained(TinyModels.path("decoders/#{base}"), adapters: { a: TinyModels.path(adapter) })
    end
    expect { load.call("llama", "adapters/llama-dora") }.to raise_error(Candle::UnsupportedModelError, /use_dora/)
    expect { load.call("gemma", "adapters/llama") }
      .to raise_error(Candle::UnsupportedModelError, %r{o_proj.*\[4, 32\].*tiny/llama})
    expect { load.call("llama", "adapters/gpt2") }.to raise_error(Candle::UnsupportedModelError, /attn\.c_attn/)
    expect { load.call("llama", "decoders/llama") }.to raise_error(Candle::ModelNotFoundError, /adapter_config\.json/)
    expect { model.use_adapter(:three) }.to raise_error(Candle::InvalidInputError, /"three"; loaded are: one, two/)
    expect { model.generate("a", adapter: "three") }.to raise_error(Candle::InvalidInputError, /loaded are: one, two/)
    expect { model.session(adapter: :three) }.to raise_error(Candle::InvalidInputError)
    expect { Candle::LLM.from_pretrained(TinyModels.path("decoders/llama"), adapters: "x") }
      .to raise_error(ArgumentError, /Hash/)
  end

  it "are loaded and unloaded while others generate" do
    names = [nil, "one", "two"]
    said = ->(name) { model.generate(prompt, config: greedy, adapter: name) }
    alone = names.to_h { |name| [name, said.call(name)] }
    kernels = model.device_report[:kernels]
    bytes = model.model_info[:weight_bytes]
    threads = (names * 3).map { |name| Thread.new { [name, Array.new(8) { said.call(name) }] } }
    8.times do
      expect(model.load_adapter(:three, TinyModels.path("adapters/llama-embeddings")).adapters).to eq(%w[one two three])
      expect(model.model_info[:weight_bytes]).to be > bytes
      expect(said.call(:three)).not_to eq(alone[nil])
      expect(model.unload_adapter("three").adapters).to eq(%w[one two])
    end
    threads.map(&:value).each { |name, texts| expect(texts.uniq).to eq([alone[name]]) }
    expect([model.device_report[:kernels], model.model_info[:weight_bytes]]).to eq([kernels, bytes])
  end

  it "stay with the requests that were begun with them" do
    said = ->(name) { model.complete(prompt, config: greedy, adapter: name) }
    whole = said.call(:one).text
    stream = model.generate_stream(prompt, config: greedy, adapter: :one)
    text = stream.next.dup
    model.use_adapter(:one).unload_adapter(:one)
    expect(model.active_adapter).to be_nil
    loop { text << stream.next }
    expect(text).to eq(whole)
    expect { said.call(:one) }.to raise_error(Candle::InvalidInputError, /"one"; loaded are: two/)
    # Another one of the same name finds nothing in the prefix cache.
    model.load_adapter(:one, TinyModels.path("adapters/llama-patterns"))
    again = said.call(:one)
    expect(again.usage.cached_tokens).to eq(0)
    expect(again.text).to eq(said.call(:two).text)
  end

  it "change nothing when they can't be loaded" do
    wrong = { "llama-dora" => [Candle::UnsupportedModelError, /use_dora/],
              "gpt2" => [Candle::UnsupportedModelError, /attn\.c_attn/],
              "../decoders/llama" => [Candle::ModelNotFoundError, /adapter_config\.json/] }
    wrong.each do |name, (error, message)|
      expect { model.load_adapter(:bad, TinyModels.path("adapters/#{name}")) }.to raise_error(error, message)
    end
    path = TinyModels.path("adapters/llama")
    expect { model.load_adapter("one", path) }.to raise_error(Candle::InvalidInputError, /"one" already/)
    expect { model.load_adapter(1, path) }.to raise_error(ArgumentError, /name must be a String or a Symbol/)
    expect { model.load_adapter(:x, nil) }.to raise_error(Candle::InvalidInputError, /source must be a String/)
    expect { model.unload_adapter(:three) }.to raise_error(Candle::InvalidInputError, /"three"; loaded are: one, two/)
    expect(model.adapters).to eq(%w[one two])
    model.close
    expect { model.load_adapter(:x, path) }.to raise_error(Candle::Error, /closed/)
  end
end
