# frozen_string_literal: true

RSpec.describe Candle::Server::Ollama do
  let(:server) { ServedModels.server }
  let(:options) { { temperature: 0, num_predict: 6 } }
  let(:question) { [{ role: "user", content: "hi" }] }

  it "chats in lines, and at once" do
    text = ServedModels.models["llm"].chat([{ role: "user", content: "hi" }], max_length: 6, temperature: 0)
    answer = post(server, "/api/chat", { model: "llm:latest", messages: question, options: options })
    expect(answer.headers["content-type"]).to eq("application/x-ndjson")
    lines = answer.lines
    expect(lines.map { |line| line["message"]["content"] }.join).to eq(text)
    expect(lines[0...-1]).to all(include("done" => false, "model" => "llm"))
    expect(lines.last).to include("done" => true, "done_reason" => "length", "eval_count" => 6)
    whole = post(server, "/api/chat", { model: "llm", messages: question, options: options, stream: false }).json
    expect(whole).to include("message" => { "role" => "assistant", "content" => text }, "done" => true)
  end

  it "generates with and without the template" do
    llm = ServedModels.models["llm"]
    raw = post(server, "/api/generate",
               { model: "llm", prompt: "the", raw: true, stream: false, options: options }).json
    expect(raw["response"]).to eq(llm.generate("the", max_length: 6, temperature: 0))
    told = post(server, "/api/generate", { model: "llm", prompt: "the", system: "S", stream: false, options: options })
    messages = [{ role: "system", content: "S" }, { role: "user", content: "the" }]
    expect(told.json["response"]).to eq(llm.chat(messages, max_length: 6, temperature: 0))
    json = post(server, "/api/generate", { model: "llm", prompt: "the", format: "json", stream: false,
                                           options: { num_predict: 3 } })
    expect(json.json["response"]).to start_with("{")
  end

  it "calls tools" do
    server, = ServedModels.scripted('<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>')
    tools = [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }]
    lines = post(server, "/api/chat", { model: "llm", messages: question, tools: tools }).lines
    calls = lines.filter_map { |line| line["message"]["tool_calls"] }.flatten
    expect(calls).to eq([{ "function" => { "name" => "weather", "arguments" => { "city" => "Rome" } } }])
  end

  it "embeds, also as older clients ask for it" do
    model = ServedModels.models["embedder"]
    answer = post(server, "/api/embed", { model: "embedder", input: ["a dog", "dog " * 100] }).json
    expect(answer["embeddings"]).to be_near(model.embed(["a dog", "dog " * 100]), 1e-6)
    expect(post(server, "/api/embeddings", { model: "embedder", prompt: "a dog" }).json["embedding"])
      .to be_near(model.embed("a dog"), 1e-6)
    expect(post(server, "/api/embed", { model: "embedder", input: "dog " * 100, truncate: false }).status).to eq(400)
  end

  it "lists and shows models" do
    models = get(server, "/api/tags").json["models"]
    expect(models.map { |model| model["name"] }).to eq(ServedModels::SOURCES.keys)
    expect(models.first).to include("size" => be > 1000, "digest" => /\A\h{64}\z/,
                                    "details" => hash_including("format" => "gguf", "family" => "llama"))
    shown = post(server, "/api/show", { model: "llm" }).json
    expect(shown).to include("capabilities" => ["completion"], "template" => /messages/,
                             "model_info" => hash_including("llama.context_length" => 64))
    expect(post(server, "/api/show", { model: "embedder" }).json["capabilities"]).to eq(["embedding"])
    expect(get(server, "/api/version").json).to eq("version" => Candle::VERSION)
  end

  it "lists the models that are loaded" do
    running = get(server, "/api/ps").json["models"]
    expect(running.map { |model| model["name"] }).to eq(ServedModels::SOURCES.keys)
    expect(running.first).to include("model" => "llm", "size" => be > 1000, "size_vram" => 0, "context_length" => 64,
                                     "expires_at" => String, "digest" => /\A\h{64}\z/, "details" => Hash)
    lazy = Candle::Server.new(models: { "e" => TinyModels.path("bert-sentence") }, lazy: true)
    expect(get(lazy, "/api/ps").json).to eq("models" => [])
  end

  it "pulls what it serves, and nothing else" do
    lazy = Candle::Server.new(models: { "e" => TinyModels.path("bert-sentence") }, lazy: true)
    lines = post(lazy, "/api/pull", { model: "e:latest" }).lines
    expect([lines.first, lines.last]).to eq([{ "status" => "pulling manifest" }, { "status" => "success" }])
    expect(get(lazy, "/api/ps").json["models"].size).to eq(1)
    expect(post(lazy, "/api/pull", { name: "e", stream: false }).json).to eq("status" => "success")
    expect(post(lazy, "/api/pull", { model: "llama3.2:3b" }))
      .to have_attributes(status: 404, json: { "error" => /no model "llama3.2:3b"; this server has e \(embedding\)/ })
    expect(post(lazy, "/api/show", {})).to have_attributes(status: 400, json: { "error" => "model is missing" })
    expect(post(lazy, "/api/show", { name: "e" }).json).to include("capabilities" => ["embedding"])
  end

  it "tells errors in its own form" do
    expect(post(server, "/api/chat", { model: "none", messages: question }))
      .to have_attributes(status: 404, json: { "error" => 'there is no model "none"; this server has llm (llm), ' \
                                                          "embedder (embedding), reranker (reranker), classifier " \
                                                          "(classifier), ner (ner), sparse (sparse)" })
    expect(post(server, "/api/chat", { messages: question }).json).to eq("error" => "model is missing")
    expect(post(server, "/api/chat",
                { model: "llm", messages: question, options: { num_predict: 65 } }).status).to eq(400)
    expect(post(server, "/api/chat", { model: "llm", messages: question, options: { top_k: "x" } }).status).to eq(400)
    expect(post(server, "/api/chat", { model: "llm", messages: question, format: 7 }).status).to eq(400)
  end
end
