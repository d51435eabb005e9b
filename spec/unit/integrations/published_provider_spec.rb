# frozen_string_literal: true

# The calls that the published gem ruby_llm-red_candle, written for 1.8, makes of this one, in its order and with its
# arguments.
RSpec.describe "what ruby_llm-red_candle calls" do
  llm = RoomyLLM.path
  messages = [{ role: "system", content: "be brief" }, { role: "user", content: "hi" }]
  symbols = { type: "object", properties: { ok: { type: "boolean" }, mood: { type: "string", enum: %w[good bad] } },
              required: %w[ok mood] }

  # Every option is passed, also where it has nothing to say.
  let(:model) { Candle::LLM.from_pretrained(llm, device: Candle::Device.cpu, gguf_file: nil, tokenizer: nil) }
  let(:prompt) { model.apply_chat_template(messages) }
  let(:config) { Candle::GenerationConfig.balanced(temperature: 0.7, max_length: 12) }

  it "finds its devices" do
    expect([Candle::Device.best, Candle::Device.cpu]).to all(be_a(Candle::Device))
  end

  it "loads a GGUF file of a repository by name" do
    directory = TinyModels.path("gguf-decoders/llama")
    name = Dir.children(directory).grep(/\.gguf\z/).first
    loaded = Candle::LLM.from_pretrained(directory, device: Candle::Device.cpu, gguf_file: name, tokenizer: nil)
    expect(loaded).to respond_to(:apply_chat_template)
  end

  it "chats" do
    answer = model.generate(prompt, config: config)
    expect(answer).to be_a(String)
    expect(answer).not_to start_with(prompt)
  end

  it "streams" do
    text = +""
    model.generate_stream(prompt, config: config) { |token| text << token }
    expect(text).not_to be_empty
  end

  it "generates structures from symbols, with the options that it always passes" do
    result = model.generate_structured(prompt, schema: symbols, temperature: 0.3, max_length: 200,
                                               warn_on_parse_error: true, reset_cache: true)
    expect(JSON.parse(JSON.generate(result)).keys).to eq(%w[ok mood])
  end

  it "calls tools and tells of their results" do
    tool = Candle::Tool.new(name: "weather", description: "",
                            parameters: { type: "object", properties: {}, required: [] }) { |_args| nil }
    result = model.chat_with_tools(messages, tools: [tool], config: config)
    expect(result.tool_calls).to be_an(Array)
    expect(result.text_response).to be_a(String).or(be_nil)
    call = %(\n<tool_call>\n{"name":"weather","arguments":{}}\n</tool_call>)
    told = [*messages, { role: "assistant", content: call }, { role: "tool", content: "rain" }]
    expect(model.chat_with_tools(told, tools: [tool], config: config).raw_response).to be_a(String)
    forced = model.chat_with_tools(messages, tools: [tool], tool_choice: :required, max_length: 100)
    expect(forced.tool_calls.map { |one| [one.name, one.arguments] }).to eq([["weather", {}]])
  end

  it "reports what can't be loaded as a StandardError with a message" do
    expect { Candle::LLM.from_pretrained("/nowhere/at/all", device: Candle::Device.cpu) }
      .to raise_error(StandardError, %r{/nowhere/at/all})
  end
end
