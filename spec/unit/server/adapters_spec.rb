# frozen_string_literal: true

require "fileutils"
require "tmpdir"

RSpec.describe "LoRA adapters over HTTP" do
  key = { "HTTP_AUTHORIZATION" => "Bearer secret" }
  question = { messages: [{ role: "user", content: "the dog" }], max_tokens: 12, temperature: 0 }

  before(:all) do
    @folder = Dir.mktmpdir
    %w[llama llama-patterns llama-dora].each { |name| FileUtils.cp_r(TinyModels.path("adapters/#{name}"), @folder) }
    @server = Candle::Server.new(models: { "llm" => { source: TinyModels.path("gguf-decoders/llama"), device: "cpu",
                                                      adapters: { one: TinyModels.path("adapters/llama") } },
                                           "embedder" => TinyModels.path("bert-sentence") },
                                 token: "secret", adapters: @folder)
    @llm = Candle::LLM.from_pretrained(TinyModels.path("gguf-decoders/llama"), device: "cpu", adapters: {
                                         one: TinyModels.path("adapters/llama"),
                                         two: TinyModels.path("adapters/llama-patterns")
                                       })
  end
  after(:all) { FileUtils.rm_rf(@folder) }

  let(:server) { @server }

  define_method(:said) { |model| post(server, "/v1/chat/completions", { model: model, **question }, key) }
  define_method(:text) { |model| said(model).json["choices"].first["message"]["content"] }
  define_method(:expected) do |adapter|
    @llm.chat(question[:messages], max_length: 12, config: Candle::GenerationConfig.new(temperature: 0),
                                   adapter: adapter)
  end
  define_method(:change) do |verb, **body|
    post(server, "/v1/#{verb}_lora_adapter", { model: "llm", **body }, key)
  end

  def names(key)
    get(server, "/v1/models", key).json["data"].to_h { |model| [model["id"], model["parent"]] }
  end

  it "are models by the names of both" do
    expect(names(key)).to include("llm" => nil, "llm:one" => "llm", "embedder" => nil)
    expect([text("llm"), text("llm:one")]).to eq([expected(nil), expected(:one)])
    expect(said("llm:one").json["model"]).to eq("llm:one")
    expect(get(server, "/v1/models/llm:one", key).json["parent"]).to eq("llm")
    ollama = post(server, "/api/chat", { model: "llm:one:latest", messages: question[:messages], stream: false,
                                         options: { num_predict: 12, temperature: 0 } }, key)
    expect(ollama.json["message"]["content"]).to eq(expected(:one))
    anthropic = post(server, "/v1/messages", { model: "llm:one", **question }, key)
    expect(anthropic.json["content"].first["text"]).to eq(expected(:one))
    expect(said("llm:none").json["error"]["message"]).to include('no model "llm:none"', "llm:one")
    expect(said("embedder:one").status).to eq(404)
    expect(get(server, "/metrics", key).text).to include('candle_tokens_total{model="llm:one",direction="out"}')
  end

  it "are loaded and unloaded while others are answered" do
    before = expected(:one)
    answers = Array.new(3) { Thread.new { Array.new(6) { text("llm:one") } } }
    expect(change("load", lora_name: "two", lora_path: "llama-patterns").json).to eq("status" => "loaded",
                                                                                     "model" => "llm:two")
    expect(answers.flat_map(&:value).uniq).to eq([before])
    expect(text("llm:two")).to eq(expected(:two))
    expect(text("llm:one")).to eq(before)
    expect(change("load", lora_name: "two", lora_path: "llama").json["error"]["code"]).to eq("adapter_exists")
    # As clients of vLLM say it, with the whole path and without the model.
    expect(post(server, "/v1/unload_lora_adapter", { lora_name: "two" }, key).status).to eq(200)
    expect(said("llm:two").status).to eq(404)
    expect(post(server, "/v1/load_lora_adapter", { lora_name: "llm:two", lora_path: "#{@folder}/llama-patterns" },
                key).status).to eq(200)
    expect(change("unload", lora_name: "two").json["status"]).to eq("unloaded")
    expect(change("unload", lora_name: "two").status).to eq(404)
  end

  it "are attached to the loaded model, whichever caller has loaded it" do
    model = Candle::LLM.from_pretrained(TinyModels.path("gguf-decoders/llama"), device: "cpu")
    own = Candle::Server.new(models: { "llm" => model }, token: "secret", adapters: @folder)
    expect(Candle::LLM).not_to receive(:from_pretrained)
    base = model.generate("the dog", max_length: 4, temperature: 0)
    expect(post(own, "/v1/load_lora_adapter", { lora_name: "x", lora_path: "llama" }, key).status).to eq(200)
    expect(model.adapters).to eq(["x"])
    hits = model.stats[:prefix_hits]
    expect(model.generate("the dog", max_length: 4, temperature: 0)).to eq(base)
    expect(model.stats[:prefix_hits]).to be > hits
    asked = { model: "llm:x", **question }
    expect(post(own, "/v1/chat/completions", asked, key).json["choices"].first["message"]["content"])
      .to eq(expected(:one))
    expect(post(own, "/v1/unload_lora_adapter", { lora_name: "x" }, key).status).to eq(200)
    expect(model.adapters).to eq([])
  end

  it "run at the same time, each as it does alone" do
    change("load", lora_name: "two", lora_path: "llama-patterns")
    names = ["llm", "llm:one", "llm:two"] * 4
    alone = names.first(3).to_h { |name| [name, text(name)] }
    expect(alone.values.uniq.size).to eq(3)
    expect(names.map { |name| Thread.new { text(name) } }.map(&:value)).to eq(names.map { |name| alone[name] })
  ensure
    change("unload", lora_name: "two")
  end

  it "stay as they were where one can't be loaded" do
    expect(change("load", lora_name: "bad", lora_path: "llama-dora").status).to eq(400)
    expect(names(key).keys).to eq(%w[llm llm:one embedder])
    expect(text("llm:one")).to eq(expected(:one))
  end

  it "are loaded from the operator's folder only, by clients with the token" do
    expect(post(server, "/v1/load_lora_adapter", { lora_name: "x", lora_path: "llama" }).status).to eq(401)
    outside = TinyModels.path("adapters/llama")
    File.symlink(outside, "#{@folder}/link")
    [outside, "..", ".", "link", "none", "llama/adapter_config.json", "a\u0000b"].each do |path|
      answer = change("load", lora_name: "x", lora_path: path)
      expect([path, answer.status, answer.json["error"]["param"]]).to eq([path, 400, "lora_path"])
    end
    expect(change("load", lora_name: "a/b", lora_path: "llama").json["error"]["param"]).to eq("lora_name")
    expect(change("load", model: "embedder", lora_name: "x", lora_path: "llama").json["error"]["code"])
      .to eq("wrong_model")
    expect(change("load", model: "llm:one", lora_name: "x", lora_path: "llama").status).to eq(400)
  end

  it "are fixed without a folder, and in other processes" do
    fixed = Candle::Server.new(models: { "llm" => @llm })
    expect(post(fixed, "/v1/load_lora_adapter", { lora_name: "x", lora_path: "llama" }))
      .to have_attributes(status: 403, text: include("adapters are fixed"))
    expect(post(fixed, "/v1/chat/completions", { model: "llm:two", **question }).status).to eq(200)
    expect { Candle::Server.new(models: { "llm" => @llm }, adapters: @folder) }
      .to raise_error(ArgumentError, "adapters needs a token: only clients that send it may load and unload adapters")
    expect { Candle::Server.new(models: { "llm" => @llm }, token: "x", adapters: "#{@folder}/none") }
      .to raise_error(ArgumentError, /folder/)
    allow(Process).to receive(:pid).and_return(1)
    expect(change("load", lora_name: "x", lora_path: "llama").status).to eq(501)
  end

  it "are named on the command line" do
    serve = Candle::CLI::Serve
    models = serve.with_adapters(serve.models(["llm=a", "b=c"]), ["llm:one=x", "llm:two=y/z"])
    expect(models).to eq("llm" => { source: "a", adapters: { "one" => "x", "two" => "y/z" } }, "b" => { source: "c" })
    expect { serve.with_adapters(models, ["none:one=x"]) }.to raise_error(ArgumentError, /MODEL:NAME=SOURCE/)
    expect { serve.with_adapters(models, ["one=x"]) }.to raise_error(ArgumentError, /models llm, b/)
  end
end
