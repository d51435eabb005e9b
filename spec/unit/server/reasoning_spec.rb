# frozen_string_literal: true

RSpec.describe "Reasoning and tools over HTTP" do
  include RackClient
  include ScriptedRuns

  template = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}|{{ enable_thinking }}|" \
             "{{ reasoning_effort }}|{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content }}{{ m.content }}" \
             "{% endfor %}{# <think> <tool_call> #}"
  question = [{ role: "user", content: "x" }]
  weather = { type: "function", function: { name: "weather", parameters: {
    type: "object", properties: { city: { type: "string" } }
  } } }
  call = ->(city) { "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"#{city}\"}}\n</tool_call>\n" }

  let(:llm) { ScriptedRuns.model(template) }
  let(:server) { Candle::Server.new(models: { "llm" => { source: llm, kind: :llm } }) }

  def send_to(path, **body)
    post(server, path, { model: "llm" }.merge(body))
  end

  def prompt = llm.tokenizer.decode(@runs.last.first)

  before { @runs = script(llm, "<think>\nI add.\n</think>\n\nIt is 4.") }

  it "is reasoning_content of OpenAI's chats, streamed and at once" do
    answer = send_to("/v1/chat/completions", messages: question).json
    message = answer["choices"].first["message"]
    expect(message).to eq("role" => "assistant", "content" => "It is 4.", "reasoning_content" => "I add.")
    expect(answer["usage"]["completion_tokens_details"]["reasoning_tokens"])
      .to be_between(1, answer["usage"]["completion_tokens"] - 1)
    events = send_to("/v1/chat/completions", messages: question, stream: true).events[0...-1]
    deltas = events.map { |event| event["choices"].first["delta"] }
    expect(deltas.filter_map { |delta| delta["reasoning_content"] }.join).to eq("I add.")
    expect(deltas.filter_map { |delta| delta["content"] }.join).to eq("It is 4.")
    expect(deltas.first).to include("role" => "assistant")
  end

  it "is asked for by effort, and by what templates are told" do
    send_to("/v1/chat/completions", messages: question, reasoning_effort: "low")
    expect(prompt).to start_with("||low|")
    send_to("/v1/chat/completions", messages: question, chat_template_kwargs: { enable_thinking: false })
    expect(prompt).to start_with("|False||")
    send_to("/v1/responses", input: "x", reasoning: { effort: "high" })
    expect(prompt).to start_with("||high|")
    send_to("/api/chat", messages: question, think: false, stream: false)
    expect(prompt).to start_with("|False||")
    send_to("/v1/messages", messages: question, max_tokens: 50, thinking: { type: "enabled", budget_tokens: 20 })
    expect(prompt).to start_with("|True||")
    { "/v1/chat/completions" => { messages: question, reasoning_effort: "vast" },
      "/api/chat" => { messages: question, think: "vast" }, "/v1/responses" => { input: "x", reasoning: { effort: 1 } },
      "/v1/messages" => { messages: question, max_tokens: 5, thinking: { type: "enabled" } } }.each do |path, body|
      expect(send_to(path, **body)).to have_attributes(status: 400)
    end
  end

  it "goes back to templates, which decide what of it is told" do
    send_to("/v1/chat/completions", messages: [*question, { role: "assistant", content: "4", reasoning_content: "hm " },
                                               *question])
    expect(prompt).to end_with("<user>x<assistant>hm 4<user>x")
    send_to("/v1/messages", max_tokens: 64, messages: [*question, { role: "assistant", content: [
              { type: "thinking", thinking: "hm ", signature: "" }, { type: "text", text: "4" }
            ] }, *question])
    expect(prompt).to end_with("<assistant>hm 4<user>x")
    send_to("/v1/responses", input: [{ type: "reasoning", content: [{ type: "reasoning_text", text: "hm " }] },
                                     { role: "assistant", content: "4" }, *question])
    expect(prompt).to end_with("<assistant>hm 4<user>x")
  end

  it "is a block of Anthropic's messages, streamed and at once" do
    answer = send_to("/v1/messages", messages: question, max_tokens: 64).json
    blocks = [{ "type" => "thinking", "thinking" => "I add.", "signature" => "" },
              { "type" => "text", "text" => "It is 4." }]
    expect(answer["content"]).to eq(blocks)
    events = send_to("/v1/messages", messages: question, max_tokens: 64, stream: true).named_events
    expect(events.map(&:first).tally).to include("content_block_start" => 2, "content_block_stop" => 2)
    deltas = events.filter_map { |_, event| event["delta"] if event["type"] == "content_block_delta" }
    expect(deltas.filter_map { |delta| delta["thinking"] }.join).to eq("I add.")
    expect(deltas.filter_map { |delta| delta["text"] }.join).to eq("It is 4.")
    expect(deltas.map { |delta| delta["type"] }.uniq).to eq(%w[thinking_delta signature_delta text_delta])
  end

  it "is thinking in Ollama's answers, streamed and at once" do
    expect(send_to("/api/chat", messages: question, stream: false).json["message"])
      .to eq("role" => "assistant", "content" => "It is 4.", "thinking" => "I add.")
    expect(send_to("/api/generate", prompt: "x", stream: false).json).to include("response" => "It is 4.",
                                                                                 "thinking" => "I add.")
    lines = send_to("/api/chat", messages: question).lines
    expect(lines.filter_map { |line| line["message"]["thinking"] }.join).to eq("I add.")
    expect(lines.map { |line| line["message"]["content"] }.join).to eq("It is 4.")
    expect(send_to("/api/show", model: "llm").json["capabilities"]).to eq(%w[completion tools thinking])
  end

  it "is an item of OpenAI's responses, streamed and at once" do
    answer = send_to("/v1/responses", input: "x").json
    expect(answer["output"].map { |item| item["type"] }).to eq(%w[reasoning message])
    expect(answer["output"].first["content"]).to eq([{ "type" => "reasoning_text", "text" => "I add." }])
    events = send_to("/v1/responses", input: "x", stream: true).named_events.map(&:last)
    expect(events.filter_map { |event| event["delta"] if event["type"] == "response.reasoning_text.delta" }.join)
      .to eq("I add.")
    added = events.select { |event| event["type"] == "response.output_item.added" }
    expect(added.map do |event|
             [event["output_index"], event["item"]["type"]]
           end).to eq([[0, "reasoning"], [1, "message"]])
    expect(events.last["response"]["output"].map { |item| item["id"] }).to eq(added.map { |event| event["item"]["id"] })
  end

  describe "calls of tools" do
    before { @runs = script(llm, "<think>\nI look.\n</think>\n\nWait.\n#{call["Rome"]}#{call["Oslo"]}") }

    it "are streamed with their indexes, the name first" do
      body = { messages: question, tools: [weather] }
      message = send_to("/v1/chat/completions", **body).json["choices"].first["message"]
      wanted = %w[Rome Oslo].map { |city| ["weather", { "city" => city }] }
      expect(message["tool_calls"].map { |one| one["function"].values_at("name", "arguments") }
        .map { |name, json| [name, JSON.parse(json)] }).to eq(wanted)
      expect(message).to include("content" => "Wait.", "reasoning_content" => "I look.")
      deltas = send_to("/v1/chat/completions", **body, stream: true).events[0...-1]
                                                                    .map { |event| event["choices"].first["delta"] }
      parts = deltas.flat_map { |delta| delta["tool_calls"].to_a }.group_by { |part| part["index"] }
      expect(parts.keys).to eq([0, 1])
      calls = parts.values.map do |pieces|
        [pieces.first["function"]["name"], JSON.parse(pieces.map { |piece| piece["function"]["arguments"] }.join)]
      end
      expect(calls).to eq(wanted)
      expect(parts.values.flat_map { |pieces| pieces.filter_map { |piece| piece["id"] } }.uniq.size).to eq(2)
      expect(parts[0].size).to be > 2
    end

    it "are at most one where the client wants no parallel ones" do
      body = { messages: question, tools: [weather], parallel_tool_calls: false }
      expect(send_to("/v1/chat/completions", **body).json["choices"].first["message"]["tool_calls"].size).to eq(1)
      deltas = send_to("/v1/chat/completions", **body, stream: true).events[0...-1]
                                                                    .map { |event| event["choices"].first["delta"] }
      expect(deltas.flat_map { |delta| delta["tool_calls"].to_a }.map { |part| part["index"] }.uniq).to eq([0])
    end
  end

  it "fills in the middle where the vocabulary has tokens for it" do
    body = { prompt: "a(", suffix: ")b" }
    expect(send_to("/v1/completions", **body)).to have_attributes(status: 400, text: /tokens to fill in the middle/)
    { %w[<|fim_prefix|> <|fim_suffix|> <|fim_middle|>] => "<|fim_prefix|>a(<|fim_suffix|>)b<|fim_middle|>",
      %w[[PREFIX] [SUFFIX]] => "[SUFFIX])b[PREFIX]a(" }.each do |tokens, prompt|
      model = ScriptedRuns.model(nil, special: tokens)
      runs = script(model, "x")
      filling = Candle::Server.new(models: { "llm" => { source: model, kind: :llm } })
      answer = post(filling, "/v1/completions", { model: "llm", echo: true, **body }).json
      expect(answer["choices"].first["text"]).to eq("a(x")
      expect(model.tokenizer.decode(runs.last.first, skip_special_tokens: false)).to end_with(prompt)
      ids = tokens.map { |token| model.tokenizer.token_to_id(token) }
      expect(runs.last.first & ids).to match_array(ids)
    end
  end
end
