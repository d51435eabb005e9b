# frozen_string_literal: true

RSpec.describe Candle::Messages do
  let(:llm) { @llm ||= Candle::LLM.from_pretrained(TinyModels.path("decoders/llama"), device: "cpu") }

  it "knows roles, and those that a chat template names" do
    described_class::ROLES.each { |role| described_class.checked([{ role: role, content: "x" }]) }
    described_class.checked([{ "role" => :user, "content" => "x" }])
    message = /\Athe role of messages\[1\] must be system, .* or function, or one that the chat template .* not "bot"\z/
    expect { described_class.checked([{ role: "user", content: "x" }, { role: "bot", content: "y" }]) }
      .to raise_error(Candle::InvalidInputError, message)
    template = "{% for m in messages %}{% if m.role == 'ipython' %}!{% endif %}{{ m.content }}{% endfor %}"
    ipython = [{ role: "ipython", content: "7" }]
    expect(described_class.checked(ipython) { [nil, template] }).to eq(ipython)
    expect { described_class.checked([{ role: "python", content: "7" }]) { [template] } }
      .to raise_error(Candle::InvalidInputError, /not "python"/)
  end

  it "rejects an unknown role the same way everywhere" do
    bot = [{ role: "bot", content: "x" }]
    template = "{{ messages[0].content }}"
    calls = [-> { llm.chat(bot, max_length: 1) }, -> { llm.chat_stream(bot, max_length: 1) {} },
             -> { llm.complete(bot, max_length: 1) }, -> { llm.apply_chat_template(bot, chat_template: template) },
             -> { llm.session(messages: bot) }, -> { llm.chat_with_tools(bot, tools: [], max_length: 1) }]
    calls.each { |call| expect(&call).to raise_error(Candle::InvalidInputError, /role of messages\[0\] .* not "bot"/) }
    bodies = { "/v1/chat/completions" => { messages: bot }, "/v1/responses" => { input: bot },
               "/api/chat" => { messages: bot } }
    bodies.each do |path, body|
      answer = post(ServedModels.server, path, { model: "llm" }.merge(body))
      expect(answer).to have_attributes(status: 400, text: /role of messages\[0\] must be .* not \\"bot\\"/)
    end
    named = "{% for m in messages %}{% if m.role == \"bot\" %}{{ m.content }}{% endif %}{% endfor %}"
    expect(llm.apply_chat_template(bot, chat_template: named)).to eq("x")
  end

  it "names a message without content" do
    [{ role: "user" }, { role: "user", content: nil }, { "role" => "assistant" }].each do |message|
      expect do
        described_class.checked([message])
      end.to raise_error(Candle::InvalidInputError, /messages\[0\] has no content/)
    end
    call = { role: "assistant", content: nil, tool_calls: [{ function: { name: "f", arguments: {} } }] }
    expect(described_class.checked([call])).to eq([call])
  end
end
