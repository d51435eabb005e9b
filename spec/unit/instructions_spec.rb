# frozen_string_literal: true

RSpec.describe Candle::Instructions do
  let(:tokenizer) { Candle::Tokenizer.from_pretrained(TinyModels.path("decoders/llama")) }
  let(:instructions) { described_class.new(tokenizer) }
  let(:system) do
    { role: "system", content: "You are brief, and you never say more than what was asked for by someone. é" }
  end

  def render(messages) = "#{messages.map { |message| "#{message[:role]}: #{message[:content]}" }.join("\n")}\nanswer:"

  def count(*messages)
    instructions.count(render(messages), messages) { |others| render(others) }
  end

  def size(text) = tokenizer.encode(text, add_special_tokens: false).size

  it "counts the tokens before what a user says" do
    before = "#{render([system]).delete_suffix("answer:")}user: "
    ["the dog", "the dog", "a cat"].each do |said|
      expect(count(system, { role: "user", content: said })).to be_within(1).of(size(before))
    end
    expect(size(before)).to be > 64
  end

  it "counts the same in a longer conversation, and what several wrote" do
    turns = [{ role: "user", content: "the dog" }, { role: "assistant", content: "yes" },
             { role: "user", content: "a cat" }]
    expect(count(system, *turns)).to eq(count(system, turns.first))
    developer = system.merge(role: :developer)
    expect(count(system, developer, *turns)).to be > count(system, *turns) + 60
  end

  it "counts what a template writes by itself, such as tools" do
    tools = "tools: #{"a tool of many words " * 8}\n"
    messages = [{ "role" => "user", "content" => "hm" }]
    found = instructions.count("#{tools}user: hm", messages) { |others| "#{tools}user: #{others.last[:content]}" }
    expect(found).to be_within(1).of(size("#{tools}user: "))
  end

  it "ends before a letter that differs in its last byte" do
    text = "a word and another one, many of them, so that this is more than sixty-four bytes: "
    found = instructions.count("#{text}é", [{ role: "user", content: "é" }]) { "#{text}è" }
    expect(found).to be_within(1).of(size(text))
  end

  it "counts nothing where too little is the same, and where a template refuses the other conversation" do
    expect(count({ role: "system", content: "Brief." }, { role: "user", content: "the dog" })).to eq(0)
    messages = [system, { role: "user", content: "the dog" }]
    refusal = -> { raise Candle::InvalidInputError, "roles must take turns" }
    expect(instructions.count(render(messages), messages) { refusal.call }).to eq(0)
  end
end
