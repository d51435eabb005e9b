# frozen_string_literal: true

# The gem where it is installed, and what it documents of itself where not.
begin
  require "langchain"
rescue LoadError
  $LOAD_PATH.push(File.expand_path("../../fixtures/interfaces", __dir__))
end
require "candle/integrations/langchain"

RSpec.describe Langchain::LLM::RedCandle do
  llm = RoomyLLM.path
  embedder = TinyModels.path("bert-sentence")

  subject(:client) { described_class.new(default_options: { chat_model: llm, embedding_model: embedder }) }

  let(:messages) { [{ role: "user", content: "the quick fox" }] }

  it "answers and counts as the model does" do
    model = Candle::LLM.from_pretrained(llm)
    wanted = model.complete(messages, temperature: 0.0, max_length: 12)
    answer = client.chat(messages: messages, max_tokens: 12)
    expect([answer.chat_completion, answer.chat_completions, answer.role])
      .to eq([wanted.text, [wanted.text], "assistant"])
    expect([answer.prompt_tokens, answer.completion_tokens]).to eq(wanted.usage.to_h.values.first(2))
    expect(answer.total_tokens).to eq(wanted.usage.prompt_tokens + wanted.usage.completion_tokens)
    expect([answer.model, answer.tool_calls]).to eq([llm, []])
    expect(answer.created_at).to be_a(Time)
  end

  it "streams, completes and summarizes" do
    pieces = []
    answer = client.chat(messages: messages, max_tokens: 12) { |chunk| pieces << chunk.chat_completion }
    expect(pieces.join).to eq(answer.chat_completion)
    pieces.clear
    done = client.complete(prompt: "the quick", max_tokens: 12) { |chunk| pieces << chunk.completion }
    expect([pieces.join, done.completions]).to eq([done.completion, [done.completion]])
    allow(client).to(receive(:chat).and_wrap_original { |chat, **given| chat.call(**given, max_tokens: 5) })
    expect(client.summarize(text: "a long story").completion).to be_a(String)
  end

  it "tells what a model thought apart from its answer" do
    source = RoomyLLM.thinking
    thoughtful = described_class.new(default_options: { chat_model: source })
    parts = []
    answer = thoughtful.chat(messages: messages, max_tokens: 60, reasoning_effort: "low") { |chunk| parts << chunk }
    wanted = Candle::LLM.from_pretrained(source).complete(messages, temperature: 0.0, max_length: 60,
                                                                    reasoning_effort: "low")
    expect([answer.reasoning, answer.chat_completion]).to eq([wanted.reasoning, wanted.text])
    expect(parts.filter_map(&:reasoning).join).to eq(answer.reasoning)
    expect(parts.filter_map(&:chat_completion).join).to eq(answer.chat_completion)
    expect(client.chat(messages: messages, max_tokens: 3).reasoning).to be_nil
  end

  it "calls tools as OpenAI's clients expect it" do
    tool = { type: "function", function: { name: "weather", description: "The weather",
                                           parameters: { type: "object", required: ["place"],
                                                         properties: { place: { enum: %w[Oslo] } } } } }
    ["required", { type: "function", function: { name: "weather" } }].each do |choice|
      answer = client.chat(messages: messages, tools: [tool], tool_choice: choice, max_tokens: 200)
      call = answer.tool_calls.first
      expect([call["type"], call.dig("function", "name")]).to eq(%w[function weather])
      expect(JSON.parse(call.dig("function", "arguments")).keys).to eq(["place"])
      reply = [*messages, { role: "assistant", content: "", tool_calls: answer.tool_calls },
               { role: "tool", content: "rain", tool_call_id: call["id"] }]
      expect(client.chat(messages: reply, tools: [tool], max_tokens: 5).chat_completion).to be_a(String)
    end
  end

  describe "an assistant" do
    let(:tool) do
      stub_const("Forecast", Class.new { def today(place:) = "rain in #{place}" })
      Forecast.extend(Langchain::ToolDefinition)
      Forecast.define_function(:today, description: "The weather", parameters: {
                                 type: "object", required: ["place"], properties: { place: { enum: %w[Oslo] } }
                               })
      Forecast.new
    end

    def assistant(**options) = Langchain::Assistant.new(llm: client, tools: [tool], **options)

    # A model that says one thing after the other.
    def scripted(*texts)
      asked = []
      model = Object.new
      model.define_singleton_method(:complete_with_tools) do |messages, tools:, **|
        asked << [messages, tools.map(&:name)]
        outcome = { token_ids: [1, 2], finish_reason: :stop, prompt_tokens: 3, cached_tokens: 0 }
        Candle::Completion.new(outcome, text: texts.shift, logprobs: nil)
      end
      allow(Candle::ModelRegistry.shared).to receive(:use).and_yield(model)
      asked
    end

    it "calls tools until the model has answered" do
      call = '<tool_call>{"name": "forecast__today", "arguments": {"place": "Oslo"}}</tool_call>'
      asked = scripted(call, "It rains.")
      talk = assistant(instructions: "Be brief.")
      talk.add_message_and_run!(content: "What is the weather?")
      expect(talk.messages.map(&:standard_role)).to eq(%i[system user llm tool llm])
      expect([talk.state, talk.messages.last.content, talk.total_tokens]).to eq([:completed, "It rains.", 10])
      told, names = asked.last
      expect(names).to eq(["forecast__today"])
      expect(told.map { |message| message[:content] }).to eq(["Be brief.", "What is the weather?", "", "rain in Oslo"])
      expect(told.last[:tool_call_id]).to eq(told[2][:tool_calls].first["id"])
    end

    it "is held to a call, and then to none, by a real model" do
      talk = assistant(tool_choice: "forecast__today")
      talk.add_message(content: "the weather")
      allow(client).to(receive(:chat).and_wrap_original { |chat, **given| chat.call(**given, max_tokens: 200) })
      talk.run
      call = talk.messages.last.tool_calls.first
      expect([talk.state, call.dig("function", "name")]).to eq([:requires_action, "forecast__today"])
      talk.tool_choice = "none"
      talk.run(execute_tools: true)
      expect([talk.state, talk.messages.last.standard_role]).to eq(%i[completed llm])
      expect(talk.messages[-2].content).to eq("rain in Oslo")
      expect { talk.tool_choice = "other" }.to raise_error(ArgumentError)
    end

    it "is for our models alone, and for texts" do
      expect { Langchain::Assistant.new(llm: Object.new) }.to raise_error(ArgumentError, /Unsupported/)
      parts = [{ role: "user", content: [{ type: "image_url", image_url: { url: "x" } }] }]
      expect { client.chat(messages: parts) }.to raise_error(ArgumentError, /parts with texts/)
    end
  end

  it "follows a response format" do
    schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"] }
    answer = client.chat(messages: messages, max_tokens: 60,
                         response_format: { type: "json_schema", json_schema: { schema: schema } })
    expect(JSON.parse(answer.chat_completion).keys).to eq(["ok"])
  end

  it "embeds one text or several" do
    model = Candle::EmbeddingModel.from_pretrained(embedder)
    expect(client.embed(text: "fox").embedding).to eq(model.embed("fox"))
    expect(client.embed(text: %w[fox dog]).embeddings).to eq(model.embed(%w[fox dog]))
    expect([client.default_dimensions, client.default_dimension]).to eq([32, 32])
  end

  it "says what it does not take" do
    expect { client.chat(messages: messages, mirostat: 2) }.to raise_error(ArgumentError, /takes no mirostat/)
  end
end
