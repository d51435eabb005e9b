# frozen_string_literal: true

RSpec.describe Candle::Server::Rewriting do
  before(:all) do
    models = { "t5" => TinyModels.path("seq2seq/t5"), "nllb" => TinyModels.path("seq2seq/nllb") }
    @server = Candle::Server.new(models: models, device: "cpu")
  end

  let(:server) { @server }
  let(:t5) { server.models.fetch("t5").model }
  let(:nllb) { server.models.fetch("nllb").model }
  let(:text) { "the quick brown fox" }

  def chat(content, **body)
    post(server, "/v1/chat/completions", { model: "t5", messages: [{ role: "user", content: content }] }.merge(body))
  end

  def said(answer) = answer.json["choices"].first.then { |choice| choice["text"] || choice["message"]["content"] }

  it "writes as the checkpoint says, unless the request does" do
    direct = t5.complete(text)
    answer = post(server, "/v1/completions", { model: "t5", prompt: text })
    expect(said(answer)).to eq(direct.text)
    expect(answer.json["usage"]).to include("prompt_tokens" => direct.usage.prompt_tokens,
                                            "completion_tokens" => direct.usage.completion_tokens)
    expect(said(chat(text))).to eq(direct.text)
    expect(said(chat(text, max_tokens: 5, num_beams: 3))).to eq(t5.generate(text, max_length: 5, num_beams: 3))
    sampled = { temperature: 1.2, seed: 7, max_tokens: 8 }
    expect(said(chat(text, **sampled))).to eq(t5.generate(text, temperature: 1.2, seed: 7, max_length: 8))
    expect(said(chat(text, max_tokens: 4, logprobs: true))).to be_a(String)
  end

  it "reads the user's last message" do
    messages = [{ role: "system", content: "S" }, { role: "user", content: "other" },
                { role: "assistant", content: "x" }, { role: "user", content: text }]
    expect(said(chat("", messages: messages))).to eq(t5.generate(text))
    expect(chat("", messages: [{ role: "system", content: "S" }]).json["error"]["message"])
      .to eq("there is no message of the user")
  end

  it "summarizes and translates, at once and in a stream" do
    expect(said(chat(text, task: "summarize"))).to eq(t5.summarize(text))
    german = t5.translate(text, to: "de", max_length: 5)
    expect(said(chat(text, task: "translate", to: "de", max_tokens: 5))).to eq(german)
    french = nllb.translate(text, to: "fra_Latn", max_length: 6)
    body = { model: "nllb", prompt: text, task: "translate", to: "fra_Latn", max_tokens: 6, stream: true }
    events = post(server, "/v1/completions", body).events
    expect(events[0...-1].map { |chunk| chunk["choices"].first["text"] }.join).to eq(french)
    options = { task: "translate", to: "fra_Latn", num_predict: 6 }
    ollama = post(server, "/api/generate", { model: "nllb", prompt: text, stream: false, options: options }).json
    expect(ollama).to include("response" => french, "done" => true)
    expect(post(server, "/api/show", { model: "nllb" }).json["capabilities"]).to eq(["completion"])
  end

  it "holds to the server's limit where a checkpoint writes more" do
    short = Candle::Server.new(models: { "t5" => t5 }, max_tokens: 2)
    answer = post(short, "/v1/completions", { model: "t5", prompt: text, min_length: 2 })
    expect(answer.json["usage"]["completion_tokens"]).to eq(2)
  end

  it "answers the pipelines of the hub's client" do
    ask = ->(path, **body) { post(server, path, { inputs: text }.merge(body)).json }
    expect(ask.call("/summarize")).to eq([{ "summary_text" => t5.summarize(text) }])
    languages = { src_lang: "eng_Latn", tgt_lang: "fra_Latn", generate_parameters: { max_new_tokens: 6 } }
    direct = nllb.translate([text, "a dog"], from: "eng_Latn", to: "fra_Latn", max_length: 6)
    expect(ask.call("/translate", model: "nllb", inputs: [text, "a dog"], parameters: languages))
      .to eq(direct.map { |one| { "translation_text" => one } })
    expect(ask.call("/")).to eq([{ "generated_text" => t5.generate(text) }])
    expect(get(server, "/metrics").text).to match(/candle_tokens_total{model="nllb",direction="out"} [1-9]/)
  end

  it "says what is wrong" do
    expect(chat(text, task: "sing").json["error"]["message"]).to match(/task must be one of/)
    expect(chat(text, task: "translate", to: "fr").json["error"]["message"]).to match(/en to de/)
    expect(chat(text, from: "en").json["error"]["message"]).to match(/are for task: :translate/)
    expect(chat(text, num_beams: 0).json["error"]["message"]).to match(/num_beams must be/)
    expect(chat(text, max_tokens: 4097).status).to eq(400)
    tools = [{ type: "function", function: { name: "f", parameters: { type: "object" } } }]
    expect(chat(text, tools: tools).json["error"]["message"]).to match(/of the kind seq2seq, and takes no tools/)
    expect(post(server, "/translate",
                { inputs: "a", model: "nllb" }).json["error"]).to match(/language to translate to/)
    expect(post(server, "/summarize", { inputs: "a", parameters: { max_new_tokens: 4097 } }).status).to eq(413)
  end
end
