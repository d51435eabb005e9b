# frozen_string_literal: true

RSpec.describe Candle::Agent do
  # Says what it is told to, and remembers what it was asked.
  let(:scripted) do
    Class.new do
      include Candle::ToolUse
      attr_reader :asked

      def initialize(*answers)
        @answers = answers
        @asked = []
      end

      def answer(messages, **options)
        @asked << [messages, options]
        Struct.new(:text).new(@answers.shift || raise("asked too often"))
      end

      def apply_chat_template(messages, tools: nil)
        [*messages, *tools].to_s
      end
    end
  end

  sum = Candle::Tool.new(name: "sum", description: "Adds", parameters: {
                           type: "object", properties: { a: { type: "number" },
                                                         b: { type: "number" } }, required: %w[a b]
                         }) { |arguments| arguments["a"] + arguments["b"] }

  def call(name, arguments)
    "<tool_call>#{JSON.generate({ name: name, arguments: arguments })}</tool_call>"
  end

  it "calls tools until there is an answer" do
    llm = scripted.new(call("sum", { a: 1, b: 2 }), call("sum", { a: 3, b: 4 }) + call("sum", { a: 5, b: 5 }),
                       "It is 17.")
    result = described_class.new(llm, tools: [sum], system_prompt: "Be exact.").run("Add.", max_length: 9)
    expect(result).to have_attributes(response: "It is 17.", iterations: 3, tool_calls_made: 3)
    expect(result.messages.map { |message| message[:role] }).to eq(%w[system user assistant tool assistant tool tool])
    told = result.messages.filter_map { |message| message[:content] if message[:role] == "tool" }
    expect(told).to eq(%w[3 7 10])
    expect(llm.asked.last).to match([array_including(hash_including(role: "tool", content: "10")),
                                     hash_including(max_length: 9)])
  end

  it "tells what happens as it happens" do
    llm = scripted.new(call("sum", { a: 1, b: 2 }), "It is 3.")
    def llm.answer(messages, **options)
      super.tap { |found| yield found.text if block_given? }
    end
    events = []
    result = described_class.new(llm, tools: [sum]).run("Add.") { |event| events << event }
    expect(result.response).to eq("It is 3.")
    expect(result.inspect).to eq('#<Candle::AgentResult "It is 3." 2 iterations, 1 calls>')
    expect(events.map(&:type)).to eq(%i[tool_call tool_result text done])
    expect(events.map(&:iteration)).to eq([1, 1, 2, 2])
    expect(events[0].tool_call).to have_attributes(name: "sum", arguments: { "a" => 1, "b" => 2 })
    expect(events[1]).to have_attributes(result: 3, error: nil)
    expect(events.last.text).to eq("It is 3.")
  end

  it "refuses what isn't a tool that can be called" do
    idle = Candle::Tool.new(name: "idle", description: "")
    expect { described_class.new(scripted.new, tools: [idle]) }
      .to raise_error(ArgumentError, /idle has no block to call/)
    expect { described_class.new(scripted.new, tools: [-> {}]) }.to raise_error(ArgumentError, /tools\[0\] must be/)
    question = [{ role: "user", content: "x" }]
    expect { scripted.new("x").chat_with_tools(question, tools: [idle], execute: true) }
      .to raise_error(ArgumentError, /idle has no block to call/)
    expect(scripted.new("x").chat_with_tools(question, tools: [idle]).raw_response).to eq("x")
  end

  it "answers at once when no tool is needed" do
    result = described_class.new(scripted.new("Hello."), tools: [sum]).run("Hi.")
    expect(result).to have_attributes(response: "Hello.", iterations: 1, tool_calls_made: 0,
                                      messages: [{ role: "user", content: "Hi." }])
  end

  it "tells the model what went wrong" do
    llm = scripted.new(call("sum", { a: "x", b: 2 }), call("product", {}), "Sorry.")
    messages = described_class.new(llm, tools: [sum]).run("Add.").messages
    errors = messages.filter_map { |message| message[:content] if message[:role] == "tool" }
    expect(errors).to match([/\AError: invalid arguments for sum: arguments.a must be of type number/,
                             /\AError: unknown tool product; there are sum/])
  end

  it "ends after max_iterations, with what was said" do
    answers = Array.new(5) { |index| call("sum", { a: index, b: 1 }) }
    llm = scripted.new(*answers)
    agent = described_class.new(llm, tools: [sum], max_iterations: 3)
    expect { agent.run("Add.") }.to raise_error(Candle::AgentMaxIterationsError, /after 3 iterations/) { |error|
      expect(error.messages.count { |message| message[:role] == "tool" }).to eq(3)
    }
    expect(llm.asked.size).to eq(3)
    expect { described_class.new(llm, tools: [], max_iterations: 0) }.to raise_error(ArgumentError, /max_iterations/)
  end

  it "goes on from a conversation" do
    history = [{ role: "user", content: "Hi." }, { role: "assistant", content: "Hello." },
               { role: "user", content: "Add." }]
    expect(described_class.new(scripted.new("Done."), tools: [sum]).run(history).messages).to eq(history)
    expect(history.size).to eq(3)
  end

  it "works with anything that answers chat_with_tools" do
    answers = [Candle::ToolCallResult.new(tool_calls: [Candle::ToolCall.new(name: "sum", arguments: {})],
                                          raw_response: "raw",
                                          tool_results: [{ tool_call: nil, result: { "x" => 1 }, error: nil }]),
               Candle::ToolCallResult.new(tool_calls: [], tool_results: [], text_response: "end", raw_response: "end")]
    llm = Class.new do
      define_method(:chat_with_tools) do |_messages, tools:, execute:, **|
        answers.shift if tools && execute
      end
    end.new
    result = described_class.new(llm, tools: [sum]).run("Add.")
    expect(result.response).to eq("end")
    expect(result.messages.last).to include(role: "tool", content: '{"x":1}')
  end
end
