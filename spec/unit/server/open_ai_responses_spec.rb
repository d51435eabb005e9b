# frozen_string_literal: true

RSpec.describe Candle::Server::OpenAIResponses do
  let(:server) { ServedModels.server }
  let(:call) { '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>' }
  let(:tools) { [{ type: "function", name: "weather", description: "Tells it", parameters: { type: "object" } }] }

  def respond(**body)
    post(server, "/v1/responses", { model: "llm", input: "hi", max_output_tokens: 8, temperature: 0 }.merge(body))
  end

  def scripted(text, **body)
    other, @llm = ServedModels.scripted(text)
    post(other, "/v1/responses", { model: "llm", input: "hi" }.merge(body))
  end

  it "answers as a chat does" do
    answer = respond.json
    chat = post(server, "/v1/chat/completions", { model: "llm", messages: [{ role: "user", content: "hi" }],
                                                  max_tokens: 8, temperature: 0 }).json
    expect(answer["output"]).to match(
      [{ "type" => "message", "id" => /\Amsg_/, "status" => "incomplete", "role" => "assistant",
         "content" => [{ "type" => "output_text", "text" => chat["choices"].first["message"]["content"],
                         "annotations" => [], "logprobs" => [] }] }]
    )
    expect(answer).to include("object" => "response", "status" => "incomplete", "error" => nil, "store" => true,
                              "incomplete_details" => { "reason" => "max_output_tokens" }, "model" => "llm")
    expect(answer["usage"]).to include("input_tokens" => chat["usage"]["prompt_tokens"], "output_tokens" => 8)
    expect(scripted("Fine.").json).to include("status" => "completed", "incomplete_details" => nil)
  end

  it "streams the events of OpenAI in their order" do
    events = respond(stream: true).named_events
    names = events.map(&:first)
    deltas = names.count("response.output_text.delta")
    expect(names).to eq(%w[response.created response.in_progress response.output_item.added
                           response.content_part.added] +
                        (["response.output_text.delta"] * deltas) +
                        %w[response.output_text.done response.content_part.done response.output_item.done
                           response.incomplete])
    data = events.map(&:last)
    expect(data.map { |event| event["type"] }).to eq(names)
    expect(data.map { |event| event["sequence_number"] }).to eq((0...data.size).to_a)
    text = data.filter_map { |event| event["delta"] }.join
    final = data.last["response"]
    expect(text).to eq(final["output"].first["content"].first["text"])
    expect(final["output"]).to eq(respond.json["output"].map { |item| item.merge("id" => data[2]["item"]["id"]) })
    expect(data.filter_map { |event| event["item_id"] }.uniq).to eq([data[2]["item"]["id"]])
    expect(data.first["response"]).to include("status" => "in_progress", "output" => [], "id" => final["id"])
  end

  it "calls functions, and is told what they returned" do
    answer = scripted("I look. #{call}", tools: tools).json
    expect(answer["output"]).to match(
      [hash_including("type" => "message", "content" => [hash_including("text" => "I look.")]),
       { "type" => "function_call", "id" => /\Afc_/, "call_id" => /\Acall_/, "name" => "weather",
         "arguments" => '{"city":"Rome"}', "status" => "completed" }]
    )
    expect(@llm.asked.first.last).to include(tools: ["weather"], tool_choice: :auto)
    history = [{ role: "user", content: [{ type: "input_text", text: "hi" }] }, *answer["output"],
               { type: "function_call_output", call_id: answer["output"].last["call_id"], output: "clear" }]
    scripted("Fine.", input: history, instructions: "Be brief.", tools: tools)
    asked = @llm.asked.first.first
    expect(asked.map { |message| message[:role] }).to eq(%w[system user assistant tool])
    expect(asked[2]).to match(role: "assistant", content: "I look.",
                              tool_calls: [hash_including(function: { name: "weather",
                                                                      arguments: { "city" => "Rome" } })])
    expect(asked.last).to include(content: "clear", tool_call_id: asked[2][:tool_calls].first[:id])
  end

  it "streams calls of functions" do
    events = scripted(call, tools: tools, stream: true).named_events
    deltas = events.filter_map { |name, event| event["delta"] if name == "response.function_call_arguments.delta" }
    expect(events.map(&:first)).to eq(["response.created", "response.in_progress", "response.output_item.added",
                                       *(["response.function_call_arguments.delta"] * deltas.size),
                                       "response.function_call_arguments.done", "response.output_item.done",
                                       "response.completed"])
    # The name comes first, and the arguments as they are written.
    expect(events[2].last["item"]).to include("name" => "weather", "arguments" => "", "status" => "in_progress")
    done = events[-3].last
    expect(done).to include("name" => "weather", "arguments" => deltas.join, "output_index" => 0)
    expect(JSON.parse(deltas.join)).to eq("city" => "Rome")
    expect(events.last.last["response"]["output"]).to eq([events[-2].last["item"]])
    both = scripted("Look: #{call}", tools: tools, stream: true).named_events
    expect(both.map { |_, event| event["output_index"] }.compact.uniq).to eq([0, 1])
    scripted("x", tools: tools, tool_choice: { type: "function", name: "weather" })
    expect(@llm.asked.first.last[:tool_choice]).to eq("weather")
  end

  it "holds the answer to a schema, and tells log probabilities" do
    schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"], additionalProperties: false }
    format = { type: "json_schema", name: "answer", schema: schema, strict: true }
    answer = respond(text: { format: format }, max_output_tokens: 40).json
    expect(JSON.parse(answer["output"].first["content"].first["text"]).keys).to eq(["ok"])
    part = respond(include: ["message.output_text.logprobs"], top_logprobs: 2).json["output"].first["content"].first
    expect(part["logprobs"].size).to eq(8)
    expect(part["logprobs"].first["top_logprobs"].size).to eq(2)
    events = respond(include: ["message.output_text.logprobs"], top_logprobs: 2, stream: true).named_events
    deltas = events.filter_map { |name, event| event["logprobs"] if name == "response.output_text.delta" }
    expect(deltas.size).to be > 1
    expect(deltas.flatten).to eq(part["logprobs"].first(deltas.flatten.size))
    expect(deltas.first).not_to be_empty
  end

  it "says what it does not take" do
    { { input: [] } => /must not be empty/, { input: [3] } => /input\[0\] must be an object/,
      { input: [{ type: "item_reference", id: "x" }] } => /item_reference/,
      { input: [{ role: "user", content: [{ type: "input_image" }] }] } => /input_image/,
      { previous_response_id: "resp_1" } => /there is no response "resp_1"/,
      { previous_response_id: 1 } => /wrong type/,
      { tools: [{ type: "web_search" }] } => /no tools of its own/,
      { text: { format: { type: "verse" } } } => /text.format/, { max_output_tokens: 0 } => /max_output_tokens/,
      { tool_choice: { type: "function" } } => /names no function/ }.each do |body, message|
      answer = respond(**body)
      expect([answer.status, answer.json["error"]["message"]]).to match([400, message]), body.inspect
    end
    expect(respond(model: "none", stream: true).status).to eq(404)
  end

  describe "that are stored" do
    def server_with(**options)
      ServedModels.scripted("Fine.", **options)
    end

    it "go on from the one before, with all that was said" do
      server, llm = server_with
      first = post(server, "/v1/responses", { input: "one", instructions: "Be brief." }).json
      second = post(server, "/v1/responses", { input: "two", previous_response_id: first["id"] }).json
      expect(second).to include("previous_response_id" => first["id"], "store" => true)
      post(server, "/v1/responses", { input: [{ role: "user", content: "three" }], stream: true,
                                      previous_response_id: second["id"] })
      expect(llm.asked.last.first.map { |message| [message[:role], message[:content]] })
        .to eq([%w[user one], %w[assistant Fine.], %w[user two], %w[assistant Fine.], %w[user three]])
    end

    it "are shown and deleted, streamed ones too" do
      server, = server_with
      made = post(server, "/v1/responses", { input: "one" }).json
      expect(get(server, "/v1/responses/#{made["id"]}").json).to eq(made)
      items = get(server, "/v1/responses/#{made["id"]}/input_items").json["data"]
      expect(items).to match([hash_including("role" => "user", "content" => "one", "type" => "message",
                                             "id" => /item_/)])
      streamed = post(server, "/v1/responses", { input: "one", stream: true }).events.last["response"]
      expect(get(server, "/v1/responses/#{streamed["id"]}").json).to eq(streamed)
      expect(ask(server, "DELETE", "/v1/responses/#{made["id"]}").json).to include("deleted" => true)
      expect(get(server, "/v1/responses/#{made["id"]}").status).to eq(404)
      expect(post(server, "/v1/responses", { input: "x", previous_response_id: made["id"] }).status).to eq(400)
    end

    it "are not kept where the client wants so" do
      server, = server_with
      made = post(server, "/v1/responses", { input: "one", store: false, prompt_cache_key: "k" }).json
      expect(made).to include("store" => false, "prompt_cache_key" => "k")
      expect(get(server, "/v1/responses/#{made["id"]}").status).to eq(404)
    end

    it "call tools over several responses" do
      other, = ServedModels.scripted("I look. #{call}")
      made = post(other, "/v1/responses", { input: "hi", tools: tools }).json
      output = { type: "function_call_output", call_id: made["output"].last["call_id"], output: "clear" }
      llm = other.models.first.model
      post(other, "/v1/responses", { input: [output], previous_response_id: made["id"], tools: tools })
      expect(llm.asked.last.first.map { |message| message[:role] }).to eq(%w[user assistant tool])
    end

    it "are few enough, and shared by processes through a storage" do
      stub_const("Candle::Server::ResponseStore::COUNT", 2)
      Dir.mktmpdir do |folder|
        [{}, { storage: folder }].each do |options|
          server, = server_with(**options)
          ids = Array.new(3) { post(server, "/v1/responses", { input: "one" }).json["id"].tap { sleep 0.01 } }
          expect(ids.map { |id| get(server, "/v1/responses/#{id}").status }).to eq([404, 200, 200])
          other, = server_with(**options)
          expect(get(other, "/v1/responses/#{ids.last}").status).to eq(options.empty? ? 404 : 200)
        end
      end
    end
  end
end
