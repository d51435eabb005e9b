# frozen_string_literal: true

RSpec.describe Candle::Server::Anthropic do
  let(:server) { ServedModels.server }
  let(:question) { [{ role: "user", content: "hi" }] }
  let(:call) { '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>' }
  let(:tools) { [{ name: "weather", description: "Tells it", input_schema: { type: "object" } }] }

  def ask_for(**body)
    post(server, "/v1/messages", { model: "llm", messages: question, max_tokens: 8, temperature: 0 }.merge(body))
  end

  def scripted(text, **body)
    other, @llm = ServedModels.scripted(text)
    post(other, "/v1/messages", { model: "llm", messages: question, max_tokens: 64 }.merge(body))
  end

  # What a client makes of the events.
  def assembled(events)
    events.each_with_object({}) do |(_, event), message|
      case event["type"]
      when "message_start" then message.merge!(event["message"])
      when "content_block_start" then message["content"][event["index"]] = event["content_block"].dup
      when "content_block_delta" then add(message["content"][event["index"]], event["delta"])
      when "message_delta"
        message.merge!(event["delta"])
        message["usage"] = message["usage"].merge(event["usage"])
      end
    end
  end

  def add(block, delta)
    case delta["type"]
    when "text_delta" then block["text"] += delta["text"]
    when "thinking_delta" then block["thinking"] += delta["thinking"]
    when "signature_delta" then block["signature"] = delta["signature"]
    else
      (block["json"] ||= +"") << delta["partial_json"]
      block["input"] = JSON.parse(block["json"]) if block["json"].end_with?("}")
    end
  end

  def plain(message)
    message.except("id").merge("content" => message["content"].map { |block| block.except("id", "json") })
  end

  it "answers a conversation like the model itself" do
    direct = ServedModels.models["llm"].complete([{ role: "user", content: "hi" }], max_length: 8, temperature: 0)
    answer = ask_for
    expect(answer.status).to eq(200)
    expect(answer.json).to match(
      "id" => /\Amsg_\h+\z/, "type" => "message", "role" => "assistant", "model" => "llm",
      "content" => [{ "type" => "text", "text" => direct.text }], "stop_reason" => "max_tokens",
      "stop_sequence" => nil, "usage" => hash_including("output_tokens" => 8, "cache_creation_input_tokens" => 0)
    )
    usage = answer.json["usage"]
    expect(usage.values_at("input_tokens", "cache_read_input_tokens").sum).to eq(direct.usage.prompt_tokens)
    expect(scripted("Fine.").json).to include("stop_reason" => "end_turn")
    expect(scripted("").json).to include("content" => [])
  end

  it "takes instructions and blocks, and lets roles take turns" do
    scripted("x", system: "Be brief.", messages: [{ role: "user", content: [{ type: "text", text: "a" },
                                                                            { type: "text", text: "b" }] }])
    expect(@llm.asked.first.first).to eq([{ role: "system", content: "Be brief." }, { role: "user", content: "ab" }])
    scripted("x", system: [{ type: "text", text: "Be ", cache_control: { type: "ephemeral" } },
                           { type: "text", text: "brief." }],
                  messages: [*question, { role: "user", content: "there" },
                             { role: "assistant", content: [{ type: "thinking", thinking: "?", signature: "" },
                                                            { type: "text", text: "yes" }] },
                             { role: "user", content: "go on" }])
    expect(@llm.asked.first.first).to eq([{ role: "system", content: "Be brief." },
                                          { role: "user", content: "hi\n\nthere" },
                                          { role: "assistant", content: "yes", reasoning_content: "?" },
                                          { role: "user", content: "go on" }])
    scripted("x", system: "", messages: [*question, { role: "system", content: "Now in rhymes." }])
    expect(@llm.asked.first.first.map { |message| message[:role] }).to eq(%w[user system])
  end

  it "samples as it is told" do
    scripted("x", top_p: 0.5, top_k: 7, temperature: 0.25, stop_sequences: ["END"], metadata: { user_id: "u" })
    expect(@llm.asked.first[1]).to have_attributes(max_length: 64, top_p: 0.5, top_k: 7, temperature: 0.25,
                                                   stop_sequences: ["END"])
    scripted("x")
    expect(@llm.asked.first[1]).to have_attributes(temperature: 1.0, stop_sequences: [])
  end

  it "tells which sequence ended the text" do
    text = ask_for(max_tokens: 12).json["content"].first["text"]
    stop = text[4, 2]
    [[stop], ["never", stop], [stop, "never"]].each do |stops|
      expect(ask_for(max_tokens: 12, stop_sequences: stops).json)
        .to include("stop_reason" => "stop_sequence", "stop_sequence" => stop,
                    "content" => [{ "type" => "text", "text" => text[0, text.index(stop)] }])
    end
    streamed = ask_for(max_tokens: 12, stop_sequences: ["never", stop], stream: true).named_events
    expect(streamed[-2].last["delta"]).to eq("stop_reason" => "stop_sequence", "stop_sequence" => stop)
  end

  it "holds the answer to a schema" do
    schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"], additionalProperties: false }
    body = { max_tokens: 40, output_config: { format: { type: "json_schema", schema: schema } } }
    answer = ask_for(**body).json
    expect(JSON.parse(answer["content"].first["text"]).keys).to eq(["ok"])
    expect(answer["stop_reason"]).to eq("end_turn")
    expect(plain(assembled(ask_for(**body, stream: true).named_events))["content"]).to eq(answer["content"])
  end

  it "tells what the prefix cache had" do
    model = Candle::LLM.from_pretrained(RoomyLLM.path, device: "cpu")
    roomy = Candle::Server.new(models: { "llm" => model })
    body = { model: "llm", messages: [{ role: "user", content: "the dog " * 100 }], max_tokens: 2 }
    first, second = Array.new(2) { post(roomy, "/v1/messages", body).json["usage"] }
    total = post(roomy, "/v1/messages/count_tokens", body.except(:max_tokens)).json["input_tokens"]
    expect(first).to include("input_tokens" => total, "cache_read_input_tokens" => 0)
    expect(second["cache_read_input_tokens"]).to be >= 64
    expect(second.values_at("input_tokens", "cache_read_input_tokens").sum).to eq(total)
    streamed = assembled(post(roomy, "/v1/messages", body.merge(stream: true)).named_events)
    expect(streamed["usage"]).to eq(second)
  end

  describe "streams" do
    it "have the events of Anthropic in their order" do
      events = ask_for(stream: true).named_events
      names = events.map(&:first)
      deltas = names.count("content_block_delta")
      expect(deltas).to be > 1
      expect(names).to eq(%w[message_start content_block_start ping] + (["content_block_delta"] * deltas) +
                          %w[content_block_stop message_delta message_stop])
      expect(events.map { |_, event| event["type"] }).to eq(names)
      start = events.first.last["message"]
      expect(start).to include("content" => [], "stop_reason" => nil, "role" => "assistant")
      expect(start["usage"]).to include("input_tokens" => be > 3, "output_tokens" => 0)
      expect(events[3].last).to match("type" => "content_block_delta", "index" => 0,
                                      "delta" => { "type" => "text_delta", "text" => String })
      expect(events[-2].last).to match("type" => "message_delta",
                                       "delta" => { "stop_reason" => "max_tokens", "stop_sequence" => nil },
                                       "usage" => hash_including("output_tokens" => 8))
    end

    it "are what is answered at once" do
      expect(plain(assembled(ask_for(stream: true).named_events))).to eq(plain(ask_for.json))
      ["Fine.", "", " spaced \n", "I look. #{call}", " \n#{call}", "#{call} #{call.sub("Rome", "Oslo")}",
       "I look. #{call} And wait.", "a < b and ``` is no call", "<tool_call>{", '{"name": "weather", "arguments": {}}',
       '{"name": "other", "arguments": {}}'].each do |text|
        streamed = scripted(text, tools: tools, stream: true).named_events
        expect(plain(assembled(streamed))).to eq(plain(scripted(text, tools: tools).json))
        expect(streamed.map(&:first)).to start_with("message_start").and end_with("message_delta", "message_stop")
      end
    end

    it "write calls of tools as JSON in pieces" do
      events = scripted("I look. #{call}", tools: tools, stream: true).named_events.map(&:last)
      inner = events.select { |event| event["index"] == 1 }
      expect(inner.map { |event| event["type"] })
        .to eq(%w[content_block_start content_block_delta content_block_delta content_block_delta content_block_stop])
      expect(inner.first["content_block"]).to match("type" => "tool_use", "id" => /\Atoolu_/, "name" => "weather",
                                                    "input" => {})
      deltas = inner[1..3].map { |event| event["delta"] }
      expect(deltas.map { |delta| delta["type"] }.uniq).to eq(["input_json_delta"])
      expect(deltas.map { |delta| delta["partial_json"] }).to eq(["", '{"city":', ' "Rome"}'])
      expect(events[-2]["delta"]["stop_reason"]).to eq("tool_use")
    end

    it "answer with a status when they fail before the first token, and with an event later" do
      long = ask_for(messages: [{ role: "user", content: "long " * 200 }], stream: true)
      expect(long).to have_attributes(status: 400)
      expect(long.json["error"]).to include("type" => "invalid_request_error", "message" => /context of 64/)
      other, llm = ServedModels.scripted("a b c")
      allow(llm).to receive(:complete) do |*, &block|
        block.call("a")
        raise Candle::DeviceError, "gone"
      end
      events = post(other, "/v1/messages", { model: "llm", messages: question, max_tokens: 5, stream: true })
      expect(events.named_events.last).to eq(
        ["error", { "type" => "error", "error" => { "type" => "api_error", "message" => "gone" } }]
      )
    end
  end

  describe "tools" do
    it "become blocks of the answer" do
      answer = scripted("I look. #{call}", tools: tools).json
      expect(answer["content"]).to match([{ "type" => "text", "text" => "I look." },
                                          { "type" => "tool_use", "id" => /\Atoolu_\h+\z/, "name" => "weather",
                                            "input" => { "city" => "Rome" } }])
      expect(answer["stop_reason"]).to eq("tool_use")
      expect(@llm.asked.first.last).to include(tools: ["weather"], tool_choice: :auto)
      both = "#{call}\n#{call.sub("Rome", "Oslo")}"
      expect(scripted(both, tools: tools).json["content"].size).to eq(2)
      one = scripted(both, tools: tools, tool_choice: { type: "auto", disable_parallel_tool_use: true }).json
      expect(one["content"].map { |block| block["input"] }).to eq([{ "city" => "Rome" }])
    end

    it "are chosen as the client says" do
      { { type: "auto" } => :auto, { type: "any" } => :required,
        { type: "tool", name: "weather" } => "weather" }.each do |choice, wanted|
        scripted("x", tools: [{ type: "custom", **tools.first }], tool_choice: choice)
        expect(@llm.asked.first.last[:tool_choice]).to eq(wanted)
      end
      scripted("x", tools: tools, tool_choice: { type: "none" })
      expect(@llm.asked.first.last).not_to have_key(:tools)
    end

    it "are called by a model that must" do
      roomy = Candle::Server.new(models: { "llm" => RoomyLLM.path }, device: "cpu")
      schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"] }
      body = { model: "llm", messages: question, max_tokens: 80, tools: [{ name: "set", input_schema: schema }],
               tool_choice: { type: "any" }, temperature: 0 }
      answer = post(roomy, "/v1/messages", body).json
      expect(answer["stop_reason"]).to eq("tool_use")
      expect(answer["content"]).to match([hash_including("type" => "tool_use", "name" => "set")])
      expect(answer["content"].first["input"]).to match("ok" => be(true).or(be(false)))
      expect(plain(assembled(post(roomy, "/v1/messages", body.merge(stream: true)).named_events))["content"])
        .to eq(plain(answer)["content"])
      count = post(roomy, "/v1/messages/count_tokens", body.except(:max_tokens, :temperature)).json["input_tokens"]
      expect(answer["usage"].values_at("input_tokens", "cache_read_input_tokens").sum).to eq(count)
    end

    it "are told their results in the form that templates take" do
      history = [*question,
                 { role: "assistant", content: [{ type: "text", text: "I look." },
                                                { type: "tool_use", id: "t1", name: "weather",
                                                  input: { city: "Rome" } },
                                                { type: "tool_use", id: "t2", name: "weather", input: {} }] },
                 { role: "user", content: [{ type: "tool_result", tool_use_id: "t1", content: "clear" },
                                           { type: "tool_result", tool_use_id: "t2", is_error: true,
                                             content: [{ type: "text", text: "no city" }] },
                                           { type: "text", text: "and?" }] }]
      scripted("Fine.", messages: history, tools: tools)
      _, assistant, *told = @llm.asked.first.first
      expect(assistant).to eq(role: "assistant", content: "I look.", tool_calls: [
                                { id: "t1", type: "function",
                                  function: { name: "weather", arguments: { "city" => "Rome" } } },
                                { id: "t2", type: "function", function: { name: "weather", arguments: {} } }
                              ])
      expect(told).to eq([{ role: "tool", name: "weather", tool_call_id: "t1", content: "clear" },
                          { role: "tool", name: "weather", tool_call_id: "t2", content: "Error: no city" },
                          { role: "user", content: "and?" }])
    end
  end

  it "counts the tokens of a conversation" do
    count = ->(**body) { post(server, "/v1/messages/count_tokens", { model: "llm", messages: question }.merge(body)) }
    usage = ask_for.json["usage"]
    expect(count.call.json).to eq("input_tokens" => usage["input_tokens"] + usage["cache_read_input_tokens"])
    expect(count.call(system: "Be brief.").json["input_tokens"]).to be > count.call.json["input_tokens"]
    expect(count.call(tools: tools).json["input_tokens"]).to be > count.call.json["input_tokens"]
    expect(count.call(messages: []).json["error"]).to include("type" => "invalid_request_error")
  end

  it "reads with models that rewrite texts" do
    rewriter = Candle::Server.new(models: { "t5" => TinyModels.path("seq2seq/t5") }, device: "cpu")
    [{}, { task: "translate", from: "en", to: "de" }].each do |task|
      body = { model: "t5", messages: question, **task }
      answer = post(rewriter, "/v1/messages", { **body, max_tokens: 4 }).json
      expect(answer["usage"]["output_tokens"]).to be_between(1, 4)
      expect(post(rewriter, "/v1/messages/count_tokens", body).json)
        .to eq("input_tokens" => answer["usage"]["input_tokens"])
    end
  end

  describe "images" do
    before(:all) { @vlm = Candle::Server.new(models: { "vlm" => TinyModels.path("llava") }, device: "cpu") }

    let(:path) { File.expand_path("../../fixtures/images/photo.png", __dir__) }
    let(:source) { { type: "base64", media_type: "image/png", data: [File.binread(path)].pack("m0") } }

    def shown(source, **body)
      content = [{ type: "image", source: source }, { type: "text", text: "what is it?" }]
      post(@vlm, "/v1/messages", { model: "vlm", messages: [{ role: "user", content: content }], max_tokens: 6,
                                   temperature: 0 }.merge(body))
    end

    it "are seen by models that take them" do
      direct = @vlm.models.fetch("vlm").model.ask(path, "what is it?", max_length: 6)
      answer = shown(source).json
      expect(answer["content"]).to eq([{ "type" => "text", "text" => direct }])
      expect(plain(assembled(shown(source, stream: true).named_events))["content"]).to eq(answer["content"])
      messages = [{ role: "user", content: [{ type: "image", source: source }, { type: "text", text: "what is it?" }] }]
      count = post(@vlm, "/v1/messages/count_tokens", { model: "vlm", messages: messages })
      expect(count.json["input_tokens"])
        .to eq(answer["usage"].values_at("input_tokens", "cache_read_input_tokens").sum).and be > 16
    end

    it "are not fetched, not opened, and refused by models of text" do
      [{ type: "url", url: "https://example.org/x.png" }, { type: "file", file_id: "f" }].each do |other|
        expect(shown(other)).to have_attributes(status: 400, json: hash_including(
          "error" => { "type" => "invalid_request_error",
                       "message" => "messages[0].content[0].source must be of the type base64: this server fetches " \
                                    "nothing" }
        ))
      end
      expect(shown(source.merge(data: "***")).json["error"]["message"]).to match(/not valid base64/)
      expect(shown(source.merge(media_type: "text/html")).status).to eq(400)
      expect(shown(source.merge(data: [path].pack("m0"))).status).to eq(400)
      blind = ask_for(messages: [{ role: "user", content: [{ type: "image", source: source }] }])
      expect(blind.json["error"]["message"]).to eq("messages[0].content[0] is an image, and the model takes text only")
      many = { messages: [{ role: "user", content: [{ type: "image", source: source }] * 17 }] }
      expect(shown(source, **many).json["error"]["message"]).to match(/17 images, and the server takes 16/)
      expect(shown(source, tools: tools).json["error"]["message"]).to match(/takes no tools/)
    end
  end

  it "refuses what it can't do, in Anthropic's form" do
    user = ->(*blocks) { [{ role: "user", content: blocks }] }
    assistant = ->(*blocks) { [{ role: "assistant", content: blocks }, *question] }
    {
      { max_tokens: nil } => "max_tokens is missing", { max_tokens: 65 } => "max_tokens must be from 1 to 64",
      { max_tokens: 0 } => /from 1 to 64/, { max_tokens: "8" } => "max_tokens has the wrong type",
      { model: nil } => "model is missing", { model: 5 } => "model has the wrong type",
      { model: "embedder" } => /of the kind embedding/,
      { messages: [] } => "messages must not be empty", { messages: nil } => "messages is missing",
      { messages: "hi" } => "messages has the wrong type", { messages: ["hi"] } => /messages\[0\] must be an object/,
      { messages: [{ role: "tool", content: "x" }] } => /role of messages\[0\] must be user, assistant or system/,
      { messages: [{ role: "system", content: [{ type: "image" }] }, *question] } => /type image, which/,
      { messages: [{ role: "user" }] } => /messages\[0\].content must be a text or an array of blocks/,
      { messages: [{ role: "user", content: [] }] } => /text or an array of blocks/,
      { messages: user.call("x") } => /content\[0\] must be a block with a type/,
      { messages: user.call({ type: "text" }) } => /the text of messages\[0\].content\[0\] must be a String/,
      { messages: user.call({ type: "document" }) } => /is of the type document, which this server does not take/,
      { messages: user.call({ type: "tool_use" }) } => /type tool_use, which/,
      { messages: user.call({ type: "tool_result", tool_use_id: "t" }) } => /tool_use_id of messages\[0\].content\[0\]/,
      { messages: assistant.call({ type: "image" }) } => /type image, which/,
      { messages: assistant.call({ type: "tool_use", id: "t", name: "f", input: "x" }) } => /input that is an object/,
      { messages: [*question, { role: "assistant", content: "Well" }] } => /does not continue an answer/,
      { system: 5 } => "system has the wrong type", { system: [5] } => /system\[0\] must be a block/,
      { system: [{ type: "image" }] } => /system\[0\] is of the type image, which/,
      { output_config: { format: { type: "json_object" } } } => /output_config.format must be/,
      { output_config: { format: { type: "json_schema", schema: {} } }, tools: tools } => /not both/,
      { tools: {} } => "tools has the wrong type", { tools: [5] } => /tools\[0\] must be a tool of the client/,
      { tools: [{ type: "bash_20250124", name: "bash" }] } => /has no tools of its own/,
      { tools: [{ name: "f" }] } => /input_schema of tools\[0\]/,
      { tools: [{ input_schema: {} }] } => /tools\[0\] must be a function with a name/,
      { tools: tools * 2 } => "tools has two tools with the name weather",
      { tool_choice: "auto" } => "tool_choice has the wrong type", { tool_choice: { type: "any" } } => /needs tools/,
      { tool_choice: { type: "tool", name: "f" } } => /one of the tools/,
      { tool_choice: {} } => /type of tool_choice must be auto, any, tool or none/,
      { stop_sequences: "x" } => "stop_sequences has the wrong type", { stop_sequences: [5] } => /array of texts/,
      { stop_sequences: [""] } => /empty/, { temperature: -1 } => /temperature must be a number/,
      { temperature: "x" } => "temperature has the wrong type", { top_p: 2 } => /top_p/, { top_k: 1.5 } => /top_k/,
      { metadata: "x" } => "metadata has the wrong type", { stream: "yes" } => "stream has the wrong type"
    }.each do |body, message|
      answer = ask_for(**body)
      expect([body, answer.status, answer.json]).to match(
        [body, 400, { "type" => "error", "error" => { "type" => "invalid_request_error", "message" => message } }]
      )
    end
  end

  it "gives errors the names of their statuses" do
    kind = ->(answer) { [answer.status, answer.json["type"], answer.json["error"]["type"]] }
    expect(kind.call(ask_for(model: "claude"))).to eq([404, "error", "not_found_error"])
    expect(kind.call(post(server, "/v1/messages", "{"))).to eq([400, "error", "invalid_request_error"])
    expect(kind.call(post(server, "/v1/messages/batches", {}))).to eq([404, "error", "not_found_error"])
    expect(kind.call(get(server, "/v1/messages"))).to eq([405, "error", "invalid_request_error"])
    small = Candle::Server.new(models: ServedModels.models.slice("llm"), body_bytes: 10)
    expect(kind.call(post(small, "/v1/messages", { model: "llm" }))).to eq([413, "error", "request_too_large"])
    other, = ServedModels.scripted("a b c d", pause: 0.2, seconds: 0.3)
    body = { model: "llm", messages: question, max_tokens: 5 }
    expect(kind.call(post(other, "/v1/messages", body))).to eq([504, "error", "timeout_error"])
    full, = ServedModels.scripted("a b c d", pause: 0.2, running: 1, waiting: 0)
    first = Thread.new { post(full, "/v1/messages", body) }
    sleep 0.3
    refused = post(full, "/v1/messages", body.merge(stream: true))
    expect([kind.call(refused), refused.headers["retry-after"]]).to eq([[429, "error", "rate_limit_error"], "1"])
    expect(first.value.status).to eq(200)
    full.close
    expect(kind.call(post(full, "/v1/messages", body))).to eq([503, "error", "api_error"])
  end

  it "lets in clients with the token, in either header" do
    guarded = Candle::Server.new(models: ServedModels.models.slice("llm"), token: "secret")
    body = { model: "llm", messages: question, max_tokens: 2 }
    version = { "HTTP_ANTHROPIC_VERSION" => "2023-06-01" }
    tell = ->(headers) { post(guarded, "/v1/messages", body, version.merge(headers)) }
    [{ "HTTP_X_API_KEY" => "secret" }, { "HTTP_AUTHORIZATION" => "Bearer secret" },
     { "HTTP_X_API_KEY" => "secret", "HTTP_AUTHORIZATION" => "Bearer other" }].each do |headers|
      expect(tell.call(headers).status).to eq(200)
    end
    [{}, { "HTTP_X_API_KEY" => "other" }, { "HTTP_X_API_KEY" => "" }].each do |headers|
      expect(tell.call(headers)).to have_attributes(status: 401, json: hash_including(
        "type" => "error", "error" => hash_including("type" => "authentication_error")
      ))
    end
    expect(post(guarded, "/v1/completions", { model: "llm", prompt: "a", max_tokens: 1 },
                { "HTTP_X_API_KEY" => "secret" }).status).to eq(200)
  end

  it "ends the generation of a client that goes away" do
    [true, false].each do |stream|
      other, llm = ServedModels.scripted("a b c d e f g h", pause: 0.1)
      input, output = IO.pipe
      body = JSON.generate({ model: "llm", messages: question, max_tokens: 8, stream: stream })
      env = { "REQUEST_METHOD" => "POST", "PATH_INFO" => "/v1/messages", "REMOTE_ADDR" => "127.0.0.1",
              "HTTP_HOST" => "localhost", "rack.input" => StringIO.new(body) }
      allow_any_instance_of(Candle::Server::Connection).to receive(:gone?) { output.closed? }
      closer = Thread.new do
        sleep 0.25
        output.close
      end
      status, _, parts = other.call(env)
      parts.each { |part| expect(part).to start_with("event: ") }
      parts.close if parts.respond_to?(:close)
      closer.join
      input.close
      expect([status, llm.finished]).to eq([stream ? 200 : 499, 1])
      expect(get(other, "/metrics").text).to include("candle_cancelled_total 1", "candle_running 0")
    end
  end
end
