# frozen_string_literal: true

# The gem where it is installed, and what it documents of itself where not.
begin
  require "ruby_llm"
rescue LoadError
  $LOAD_PATH.push(File.expand_path("../../fixtures/interfaces", __dir__))
end
require "candle/integrations/ruby_llm"

RSpec.describe Candle::Integrations::RubyLLM do
  llm = RoomyLLM.path
  embedder = TinyModels.path("bert-sentence")
  limited = { params: { max_tokens: 12 } }

  let(:weather) do
    Class.new(RubyLLM::Tool) do
      description "The weather"
      param :abroad, type: "boolean", desc: "whether elsewhere"

      def name = "weather"

      def execute(abroad:)
        (@asked ||= []) << abroad
        "It rains."
      end

      attr_reader :asked
    end.new
  end

  def chat(model, **options)
    RubyLLM::Chat.new(model: model, provider: :red_candle, **options)
  end

  it "is the provider that RubyLLM finds by its name" do
    expect(RubyLLM::Provider.providers[:red_candle]).to eq(described_class)
    expect([described_class.slug, described_class.local?, described_class.configuration_requirements])
      .to eq(["red_candle", true, []])
    expect(RubyLLM::Configuration.new).to respond_to(:red_candle_device)
  end

  it "answers as the model does" do
    answer = chat(llm, **limited).ask("the quick fox")
    model = Candle::LLM.from_pretrained(llm)
    wanted = model.complete([{ role: "user", content: "the quick fox" }], temperature: 0.0, max_length: 12)
    expect(answer.content).to eq(wanted.text)
    expect([answer.role, answer.input_tokens, answer.output_tokens])
      .to eq([:assistant, wanted.usage.prompt_tokens, wanted.usage.completion_tokens])
  end

  it "streams chunks that add up to the answer" do
    chunks = []
    answer = chat(llm, **limited).ask("the quick fox") { |chunk| chunks << chunk }
    expect(chunks).to all(be_a(RubyLLM::Chunk))
    expect(chunks.size).to be > 1
    expect(chunks.map(&:content).join).to eq(answer.content)
  end

  it "calls tools and reads what they said" do
    conversation = chat(llm, params: { max_tokens: 200, seed: 3 }, tool_prefs: { choice: :required })
    conversation.with_tool(weather).ask("Does it rain?")
    expect(weather.asked.size).to eq(1)
    roles = conversation.messages.map(&:role)
    expect(roles).to eq(%i[user assistant tool assistant])
    call = conversation.messages[1].tool_calls.values.first
    expect([call.name, call.arguments.keys]).to eq(["weather", ["abroad"]])
    expect(conversation.messages[2].tool_call_id).to eq(call.id)
  end

  it "thinks as it is told, streamed and at once, and before it follows a schema" do
    source = RoomyLLM.thinking
    said = { text: +"", thinking: +"" }
    conversation = chat(source, params: { max_tokens: 40 }).with_thinking(budget: 4)
    answer = conversation.ask("the quick fox") do |chunk|
      said[:text] << chunk.content.to_s
      said[:thinking] << chunk.thinking&.text.to_s
    end
    model = Candle::LLM.from_pretrained(source)
    wanted = model.complete([{ role: "user", content: "the quick fox" }], temperature: 0.0, max_length: 40,
                                                                          reasoning: { budget: 4 })
    expect([answer.thinking.text, answer.content]).to eq([wanted.reasoning, wanted.text])
    expect(said).to eq(text: answer.content, thinking: answer.thinking.text)
    expect(answer.thinking_tokens).to eq(wanted.reasoning_tokens)
    # What it thought goes back to the template.
    conversation.ask("and then?")
    expect(chat(source, params: { max_tokens: 8 }).with_thinking(effort: :none).ask("a").thinking).to be_nil
    schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"] }
    held = chat(source, schema: schema, max_output_tokens: 120).with_thinking(budget: 4).ask("Well?")
    expect(JSON.parse(held.content).keys).to eq(["ok"])
    expect(held.thinking.text).not_to be_empty
    expect { chat(source).with_thinking(effort: "vast").ask("a") }.to raise_error(ArgumentError, /effort/)
  end

  it "takes the schema of a tool by the names that versions of RubyLLM give it" do
    schema = { "type" => "object", "properties" => { "side" => { "enum" => ["left"] } }, "required" => ["side"],
               "additionalProperties" => false, "strict" => true }
    %i[params_schema parameters_schema].each do |name|
      made = Class.new(RubyLLM::Tool) do
        description "Turns"
        define_method(:name) { "turn" }
        define_method(name) { schema }
        define_method(:execute) { |side:| "turned #{side}" }
      end.new
      conversation = chat(llm, params: { max_tokens: 100 }, tool_prefs: { choice: :required }).with_tool(made)
      conversation.ask("Turn!")
      expect(conversation.messages[2].content).to eq("turned left")
    end
  end

  it "follows a schema, with and without a name" do
    schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"] }
    [schema, { name: "answer", schema: schema, strict: true }].each do |given|
      answer = chat(llm, schema: given, params: { max_tokens: 60 }).ask("Well?")
      expect(JSON.parse(answer.content).keys).to eq(["ok"])
    end
  end

  it "counts the tokens that it would read, and leaves messages as they are" do
    provider = described_class.new(RubyLLM::Configuration.new)
    messages = [RubyLLM::Message.new(role: :user, content: "the quick fox")]
    counted = provider.count_tokens(messages, model: llm)
    expect(counted).to eq(chat(llm, **limited).ask("the quick fox").input_tokens)
    expect(provider.count_tokens(messages, model: llm, tools: { weather: weather })).to be > counted
    expect(provider.preprocess_message(messages.first, model: llm, protocol: nil)).to equal(messages.first)
  end

  it "embeds" do
    provider = described_class.new(RubyLLM::Configuration.new)
    model = Candle::EmbeddingModel.from_pretrained(embedder)
    one = provider.embed("the quick fox", model: embedder, dimensions: nil)
    expect(one.vectors).to eq(model.embed("the quick fox"))
    expect([one.model, one.input_tokens]).to eq([embedder, model.count_tokens("the quick fox")])
    expect(provider.embed(%w[fox dog], model: embedder, dimensions: 8).vectors.map(&:size)).to eq([8, 8])
  end

  it "loads a model once, on the device that the configuration names" do
    config = RubyLLM::Configuration.new
    config.red_candle_device = "cpu"
    expect(Candle::EmbeddingModel).to receive(:from_pretrained).with(embedder, device: "cpu").once.and_call_original
    2.times { described_class.new(config).embed("fox", model: embedder, dimensions: nil) }
  end

  it "says what it does not take" do
    expect { chat(llm, params: { logit_bias: {} }).ask("a") }.to raise_error(ArgumentError, /no logit_bias/)
    picture = RubyLLM::Content.new("What is this?", ["x.png"])
    expect { chat(llm).ask(picture) }.to raise_error(Candle::InvalidInputError, /attachments/)
  end
end
