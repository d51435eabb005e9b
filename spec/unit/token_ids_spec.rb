# frozen_string_literal: true

# Ids of prompts stay in the engine, and conversations are checked once.
RSpec.describe Candle::Tokenizer::Ids do
  let(:llm) { Candle::LLM.from_pretrained(TinyModels.path("gguf-decoders/llama")) }
  let(:tokenizer) { llm.tokenizer }
  let(:messages) { [{ role: "user", content: "the dog" }] }

  it "has the ids of the text" do
    [true, false].each do |special|
      ids = tokenizer.ids("the dog", add_special_tokens: special)
      expect(ids.to_a).to eq(tokenizer.encode("the dog", add_special_tokens: special))
      expect(ids.size).to eq(ids.to_a.size)
    end
  end

  it "begins once with what the model begins with" do
    tokenizer = Candle::Tokenizer.from_pretrained(File.expand_path("../fixtures/tokenizers/sentencepiece", __dir__))
    id = tokenizer.get_special_tokens.fetch("bos_token")
    expect(tokenizer.ids("the dog").to_a.count(id)).to eq(1)
    text = "#{tokenizer.id_to_token(id)}the dog"
    expect(tokenizer.ids(text).to_a.count(id)).to eq(1)
    expect(tokenizer.ids(text, add_special_tokens: true).to_a.first(2)).to eq([id, id])
  end

  it "joins and splits" do
    ids = tokenizer.ids("a", add_special_tokens: false) + [7, 5] + (tokenizer.ids("b", add_special_tokens: false) + [7])
    first, last = %w[a b].map { |text| tokenizer.encode(text, add_special_tokens: false) }
    expect(ids.to_a).to eq([*first, 7, 5, *last, 7])
    expect(ids.split(7).map(&:to_a)).to eq([first, [5, *last], []])
    expect { ids + :x }.to raise_error(TypeError)
    expect { described_class.new }.to raise_error(NoMethodError)
  end

  it "goes to the model as it is, from a prompt and from a conversation" do
    allow(llm).to receive(:_begin).and_wrap_original do |original, ids, settings|
      expect(ids).to be_a(described_class)
      original.call(ids, settings)
    end
    llm.generate("the dog", max_length: 2)
    llm.chat(messages, max_length: 2)
    expect(llm).to have_received(:_begin).twice
  end

  it "checks a conversation once" do
    allow(Candle::Messages).to receive(:checked).and_call_original
    llm.chat(messages, max_length: 2)
    expect(Candle::Messages).to have_received(:checked).once
    expect { llm.chat("the dog") }.to raise_error(Candle::InvalidInputError, /Array of Hashes/)
    expect { llm.chat([{ content: "x" }]) }.to raise_error(Candle::InvalidInputError, /messages\[0\]/)
  end

  it "checks a conversation with control tokens in it once" do
    allow(Candle::Messages).to receive(:checked).and_call_original
    told = [{ role: "user", content: "the #{tokenizer.get_special_tokens.fetch("bos_token")} dog" }]
    llm.chat(told, max_length: 2)
    expect(Candle::Messages).to have_received(:checked).with(told).once
  end

  it "checks a conversation with an image once" do
    vlm = Candle::VLM.from_pretrained(TinyModels.path("llava"))
    image = { type: "image", image: File.expand_path("../fixtures/images/photo.png", __dir__) }
    allow(Candle::Messages).to receive(:checked).and_call_original
    allow(Candle::Messages).to receive(:role?).and_call_original
    vlm.chat([{ role: "user", content: [image, { type: "text", text: "what?" }] }], max_length: 2)
    expect(Candle::Messages).to have_received(:checked).once
    expect(Candle::Messages).to have_received(:role?).once
    expect { vlm.chat([{ content: "x" }]) }.to raise_error(Candle::InvalidInputError, /messages\[0\]/)
  end

  describe "over HTTP" do
    let(:server) { Candle::Server.new(models: { "llm" => llm, "vlm" => vlm, "tools" => roomy }, max_tokens: 8) }
    let(:vlm) { Candle::VLM.from_pretrained(TinyModels.path("llava")) }
    let(:roomy) { Candle::LLM.from_pretrained(RoomyLLM.path) }
    let(:tool) { { type: "function", function: { name: "look", parameters: { type: "object", properties: {} } } } }
    let(:call) { { id: "1", type: "function", function: { name: "look", arguments: "{}" } } }

    def chat(name, messages, **body)
      post(server, "/v1/chat/completions", { model: name, messages: messages, max_tokens: 2 }.merge(body))
    end

    before do
      # What is asked of a model and its template once.
      %w[llm vlm].each { |name| chat(name, messages) }
      chat("tools", messages, tools: [tool])
      allow(Candle::Messages).to receive(:role?).and_call_original
    end

    it "checks each message once" do
      %w[llm vlm].each { |name| expect(chat(name, messages).status).to eq(200) }
      expect(Candle::Messages).to have_received(:role?).twice
    end

    it "checks messages once that are rewritten for tools" do
      told = [*messages, { role: "assistant", tool_calls: [call] }, { role: "tool", content: "none", name: "look" }]
      answer = chat("tools", told, tools: [tool])
      expect([answer.status, answer.json["error"]]).to eq([200, nil])
      expect(chat("tools", told).status).to eq(200)
      expect(Candle::Messages).to have_received(:role?).exactly(2 * told.size).times
    end

    it "refuses what isn't a message" do
      expect(chat("llm", [{ role: "stranger", content: "x" }]).json["error"]["message"]).to include("messages[0]")
      expect(chat("vlm", ["x"]).status).to eq(400)
    end
  end
end
