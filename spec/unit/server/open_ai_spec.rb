# frozen_string_literal: true

RSpec.describe Candle::Server::OpenAI do
  let(:server) { ServedModels.server }
  let(:question) { [{ role: "user", content: "hi" }] }

  def chat(**body)
    post(server, "/v1/chat/completions", { model: "llm", messages: question, max_tokens: 8 }.merge(body))
  end

  it "lists the models, and tells of one" do
    list = get(server, "/v1/models").json
    expect(list["data"].map { |model| model["id"] }).to eq(ServedModels::SOURCES.keys)
    expect(get(server, "/v1/models/embedder").json).to include("id" => "embedder", "object" => "model")
    expect(get(server, "/v1/models/other").json["error"]).to include("code" => "model_not_found", "param" => "model")
  end

  it "answers a conversation like the model itself" do
    answer = chat(temperature: 0)
    direct = ServedModels.models["llm"].complete([{ role: "user", content: "hi" }], max_length: 8, temperature: 0)
    expect(answer.status).to eq(200)
    expect(answer.json).to match(hash_including("object" => "chat.completion", "model" => "llm"))
    choice = answer.json["choices"].first
    expect(choice["message"]).to eq("role" => "assistant", "content" => direct.text)
    expect(choice["finish_reason"]).to eq("length")
    expect(answer.json["usage"]).to include("prompt_tokens" => direct.usage.prompt_tokens, "completion_tokens" => 8,
                                            "total_tokens" => direct.usage.prompt_tokens + 8)
  end

  it "streams what it would answer at once, with the usage where it is asked for" do
    events = chat(temperature: 0, stream: true, stream_options: { include_usage: true }).events
    expect(events.last).to eq("[DONE]")
    chunks = events[0...-1]
    expect(chunks.map { |chunk| chunk["object"] }).to all(eq("chat.completion.chunk"))
    expect(chunks.map { |chunk| chunk["id"] }.uniq.size).to eq(1)
    expect(chunks.first["choices"].first["delta"]["role"]).to eq("assistant")
    text = chunks.flat_map { |chunk| chunk["choices"] }.filter_map { |choice| choice["delta"]["content"] }.join
    expect(text).to eq(chat(temperature: 0).json["choices"].first["message"]["content"])
    expect(chunks[-2]["choices"].first["finish_reason"]).to eq("length")
    expect(chunks.last).to include("choices" => [], "usage" => hash_including("completion_tokens" => 8))
    plain = chat(stream: true).events[0...-1]
    expect(plain).to all(satisfy { |chunk| !chunk.key?("usage") })
  end

  it "gives as many answers as are asked for, by the seed" do
    one = chat(n: 3, seed: 7, temperature: 1.5).json
    other = chat(n: 3, seed: 7, temperature: 1.5).json
    texts = ->(json) { json["choices"].map { |choice| choice["message"]["content"] } }
    expect(one["choices"].map { |choice| choice["index"] }).to eq([0, 1, 2])
    expect(texts.call(one)).to eq(texts.call(other))
    expect(texts.call(one).uniq.size).to be > 1
    indexes = chat(n: 2, stream: true).events[0...-1].flat_map { |chunk| chunk["choices"] }.map { |item| item["index"] }
    expect(indexes.uniq).to eq([0, 1])
  end

  it "biases tokens, in chats, completions and responses, streamed and at once" do
    tokenizer = ServedModels.models["llm"].tokenizer
    id = tokenizer.encode("dog", add_special_tokens: false).last
    wanted = tokenizer.decode([id] * 8)
    biased = { logit_bias: { id.to_s => 100 }, temperature: 0 }
    expect(chat(**biased).json["choices"].first["message"]["content"]).to eq(wanted)
    deltas = chat(**biased, stream: true).events[0...-1].map { |event| event["choices"].first["delta"]["content"] }
    expect(deltas.join).to eq(wanted)
    completed = post(server, "/v1/completions", { model: "llm", prompt: "the", max_tokens: 8, **biased }).json
    expect(completed["choices"].first["text"]).to eq(wanted)
    responded = post(server, "/v1/responses", { model: "llm", input: "hi", max_output_tokens: 8, **biased }).json
    expect(responded["output"].first["content"].first["text"]).to eq(wanted)
    # A token that is banned does not come.
    plain = chat(temperature: 0, logprobs: true).json["choices"].first["logprobs"]["content"]
    first = ServedModels.models["llm"].complete(question, max_length: 1, temperature: 0).token_ids.first
    other = chat(temperature: 0, logprobs: true, logit_bias: { first.to_s => -100 })
    expect(other.json["choices"].first["logprobs"]["content"].first["logprob"]).to be < plain.first["logprob"]
    # Constraints are stronger.
    schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"], additionalProperties: false }
    form = { type: "json_schema", json_schema: { name: "a", schema: schema } }
    held = chat(**biased, max_tokens: 40, response_format: form).json["choices"].first["message"]["content"]
    expect(JSON.parse(held).keys).to eq(["ok"])
  end

  it "stops at the texts that are given" do
    text = chat(temperature: 0, max_tokens: 12).json["choices"].first["message"]["content"]
    choice = chat(temperature: 0, max_tokens: 12, stop: text[4, 2]).json["choices"].first
    expect(choice).to include("finish_reason" => "stop", "message" => hash_including("content" => text[0, 4]))
  end

  it "tells log probabilities, also in a stream" do
    content = chat(temperature: 0, logprobs: true, top_logprobs: 2).json["choices"].first["logprobs"]["content"]
    expect(content.size).to eq(8)
    expect(content.first).to match("token" => String, "logprob" => Float, "bytes" => anything,
                                   "top_logprobs" => [hash_including("logprob" => Float)] * 2)
    expect(content.first["logprob"]).to eq(content.first["top_logprobs"].first["logprob"])
    streamed = chat(temperature: 0, logprobs: true, top_logprobs: 2, stream: true).events[0...-1]
    told = streamed.filter_map { |chunk| chunk["choices"].first["logprobs"]&.fetch("content") }
    expect(told.flatten).to eq(content)
    expect(told.size).to be > 1
    texts = streamed.filter_map { |chunk| chunk["choices"].first if chunk["choices"].first["logprobs"] }
    expect(texts.first["delta"]["content"]).not_to be_empty
  end

  it "holds the answer to a schema" do
    schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"], additionalProperties: false }
    format = { type: "json_schema", json_schema: { name: "answer", schema: schema } }
    answer = chat(max_tokens: 40, response_format: format).json["choices"].first
    expect(JSON.parse(answer["message"]["content"]).keys).to eq(["ok"])
    expect(answer["finish_reason"]).to eq("stop")
    object = chat(response_format: { type: "json_object" }).json["choices"].first
    expect(object["message"]["content"]).to start_with("{")
    expect(chat(response_format: { type: "verse" }).json["error"]).to include("param" => "response_format")
    bad = { type: "json_schema", json_schema: { schema: { type: "object", "patternThing" => 1, "not" => {} } } }
    expect(chat(response_format: bad, stream: true).status).to eq(400)
  end

  describe "tools" do
    let(:tools) do
      [{ type: "function", function: { name: "weather", description: "Tells it", parameters: { type: "object" } } }]
    end
    let(:call) { '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>' }

    def asked(text, **body)
      server, @llm = ServedModels.scripted(text)
      post(server, "/v1/chat/completions", { model: "llm", messages: question, tools: tools }.merge(body))
    end

    it "become calls of the answer" do
      choice = asked("I look. #{call}").json["choices"].first
      expect(choice["finish_reason"]).to eq("tool_calls")
      expect(choice["message"]).to match(
        "role" => "assistant", "content" => "I look.",
        "tool_calls" => [{ "id" => /\Acall-\h+\z/, "type" => "function",
                           "function" => { "name" => "weather", "arguments" => '{"city":"Rome"}' } }]
      )
      expect(@llm.asked.first.last).to include(tools: ["weather"], tool_choice: :auto)
    end

    it "are streamed after the text before them" do
      chunks = asked("I look. #{call}", stream: true).events[0...-1]
      deltas = chunks.map { |chunk| chunk["choices"].first["delta"] }
      expect(deltas.filter_map { |delta| delta["content"] }.join).to eq("I look.")
      calls = deltas.filter_map { |delta| delta["tool_calls"] }.flatten
      expect(calls.first).to match("index" => 0, "id" => /\Acall-\h+\z/, "type" => "function",
                                   "function" => { "name" => "weather", "arguments" => "" })
      expect(calls.drop(1).map { |one| [one["index"], one.keys.size] }.uniq).to eq([[0, 2]])
      expect(calls.map { |one| one["function"]["arguments"] }.join).to eq('{"city": "Rome"}')
      expect(chunks.last["choices"].first["finish_reason"]).to eq("tool_calls")
    end

    it "leave text alone that only looks like a call" do
      text = "a < b and ``` is no call"
      chunks = asked(text, stream: true).events[0...-1]
      expect(chunks.filter_map { |chunk| chunk["choices"].first["delta"]["content"] }.join).to eq(text)
      expect(chunks.last["choices"].first["finish_reason"]).to eq("stop")
    end

    it "are chosen as the client says" do
      asked("x", tool_choice: "required")
      expect(@llm.asked.first.last[:tool_choice]).to eq(:required)
      asked("x", tool_choice: { type: "function", function: { name: "weather" } })
      expect(@llm.asked.first.last[:tool_choice]).to eq("weather")
      asked("x", tool_choice: "none")
      expect(@llm.asked.first.last).not_to have_key(:tools)
      expect(asked("x", tool_choice: "perhaps").json["error"]).to include("param" => "tool_choice")
      expect(asked("x", response_format: { type: "json_object" }).json["error"]["message"]).to match(/not both/)
    end

    it "are told their results in the form that templates take" do
      history = [*question, { role: "assistant", content: nil, tool_calls: [
        { id: "call1", type: "function", function: { name: "weather", arguments: '{"city":"Rome"}' } }
      ] }, { role: "tool", tool_call_id: "call1", content: "clear" }]
      asked("Fine.", messages: history)
      _, assistant, told = @llm.asked.first.first
      expect(assistant).to include(content: "", tool_calls: [{ id: "call1", type: "function", function: {
                                     name: "weather", arguments: { "city" => "Rome" }
                                   } }])
      expect(told).to include(role: "tool", tool_call_id: "call1", content: "clear")
    end
  end

  it "joins the text parts of a message, and refuses pictures" do
    parts = [{ type: "text", text: "a" }, { type: "text", text: "b" }]
    server, llm = ServedModels.scripted("x")
    post(server, "/v1/chat/completions", { model: "llm", messages: [{ role: "developer", content: parts }] })
    expect(llm.asked.first.first).to eq([{ role: "system", content: "ab" }])
    picture = [{ role: "user", content: [{ type: "image_url", image_url: { url: "data:image/png;base64,AA" } }] }]
    expect(chat(messages: picture).json["error"]["message"]).to match(/image_url, and the model takes text only/)
  end

  it "tells errors in its own form and with its statuses" do
    expect(chat(model: "other")).to have_attributes(status: 404)
    expect(chat(model: "embedder").json["error"]).to include("type" => "invalid_request_error", "param" => "model")
    expect(chat(messages: []).json["error"]).to include("param" => "messages")
    expect(chat(messages: "x").json["error"]).to include("message" => "messages has the wrong type")
    expect(chat(max_tokens: 65).json["error"]["message"]).to eq("max_tokens must be from 1 to 64")
    expect(chat(temperature: -1).json["error"]["message"]).to match(/temperature must be a number/)
    expect(chat(n: 9).status).to eq(400)
    [{ "5" => 101 }, { "the" => 1 }, { "-1" => 1 }, { "5" => "1" }, { "5" => nil }, [5], { "" => 1 }].each do |bias|
      expect([bias, chat(logit_bias: bias).json["error"]["param"]]).to eq([bias, "logit_bias"])
    end
    expect(chat(logit_bias: { "4000000" => 1 })).to have_attributes(status: 400, text: include("names token 4000000"))
    expect(post(server, "/v1/chat/completions", "{").json["error"]).to include("code" => "invalid_json")
    expect(get(server,
               "/v1/chat/completions")).to have_attributes(status: 405, headers: hash_including("allow" => "POST"))
  end

  it "answers with a status when a stream fails before its first token" do
    long = chat(messages: [{ role: "user", content: "long " * 200 }], stream: true)
    expect(long.status).to eq(400)
    expect(long.json["error"]["message"]).to match(/do not fit the context of 64/)
  end

  describe "/v1/completions" do
    def complete(**body)
      post(server, "/v1/completions", { model: "llm", prompt: "the dog", max_tokens: 6, temperature: 0 }.merge(body))
    end

    let(:text) { ServedModels.models["llm"].generate("the dog", max_length: 6, temperature: 0) }

    it "continues a prompt, several, and tokens" do
      expect(complete.json).to include("object" => "text_completion",
                                       "usage" => hash_including("completion_tokens" => 6))
      expect(complete.json["choices"].first).to include("text" => text, "finish_reason" => "length")
      expect(complete(echo: true).json["choices"].first["text"]).to eq("the dog#{text}")
      both = complete(prompt: ["the dog", "a cat"], n: 2).json
      expect(both["choices"].map { |choice| choice["index"] }).to eq([0, 1, 2, 3])
      ids = ServedModels.models["llm"].tokenizer.encode("the dog", add_special_tokens: false)
      expect(complete(prompt: ids).json["choices"].first["text"]).to eq(text)
    end

    it "streams, and tells log probabilities in the older form" do
      events = complete(stream: true).events
      expect(events[0...-1].map { |chunk| chunk["choices"].first["text"] }.join).to eq(text)
      found = complete(logprobs: 2).json["choices"].first["logprobs"]
      expect(found.transform_values(&:size)).to eq("tokens" => 6, "token_logprobs" => 6, "text_offset" => 6,
                                                   "top_logprobs" => 6)
    end

    it "refuses what it can't do" do
      expect(complete(suffix: "x").json["error"]["param"]).to eq("suffix")
      expect(complete(best_of: 3).status).to eq(400)
      expect(complete(prompt: [1, "a"]).status).to eq(400)
    end
  end

  describe "/v1/embeddings" do
    let(:model) { ServedModels.models["embedder"] }

    def embed(input, **body)
      post(server, "/v1/embeddings", { model: "embedder", input: input }.merge(body))
    end

    it "embeds texts and tokens" do
      answer = embed(["the dog", "hello"]).json
      expect(answer["data"].map { |item| item["embedding"] }).to be_near(model.embed(["the dog", "hello"]), 1e-6)
      expect(answer["usage"]["prompt_tokens"]).to eq(model.count_tokens("the dog") + model.count_tokens("hello"))
      ids = model.tokenizer.encode("the dog")
      [ids, [ids]].each do |tokens|
        expect(embed(tokens).json["data"].first["embedding"]).to be_near(model.embed("the dog"), 1e-6)
      end
    end

    it "writes base64 and fewer dimensions" do
      item = embed("the dog", encoding_format: "base64", dimensions: 8).json["data"].first
      expect(item["embedding"].unpack1("m").unpack("e*")).to be_near(model.embed("the dog", dimensions: 8), 1e-6)
    end

    it "refuses what is empty, too long or too much" do
      expect(embed("").status).to eq(400)
      expect(embed([]).status).to eq(400)
      expect(embed([["a"]]).status).to eq(400)
      expect(embed("dog " * 100).json["error"]["message"]).to match(/tokens/)
      expect(embed("a", dimensions: 999).status).to eq(400)
      expect(embed("a", encoding_format: "hex").json["error"]["param"]).to eq("encoding_format")
      expect(embed(["a"] * 1025)).to have_attributes(status: 413)
    end
  end
end
