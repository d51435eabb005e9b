# frozen_string_literal: true

require "json"
require "tmpdir"

RSpec.describe Candle::ToolUse do
  weather = Candle::Tool.new(
    name: "weather", description: "The weather in a city",
    parameters: { type: "object", properties: { city: { type: "string", enum: %w[Rome Oslo] },
                                                days: { type: "integer", minimum: 1, maximum: 7 } },
                  required: ["city"], additionalProperties: false }
  ) { |arguments| { city: arguments[:city], sky: "clear", days: arguments["days"] } }
  clock = Candle::Tool.new(name: "clock", description: "The time") { "noon" }

  # A tiny model with a chat template of its own.
  def model(template)
    directory = Dir.mktmpdir
    (@directories ||= []) << directory
    FileUtils.cp_r("#{TinyModels.path("decoders/llama")}/.", directory)
    path = File.join(directory, "tokenizer_config.json")
    File.write(path, JSON.generate(JSON.parse(File.read(path)).merge("chat_template" => template)))
    Candle::LLM.from_pretrained(directory)
  end

  # Has a model say the prompt instead of answering it.
  def unrun(llm)
    allow(llm).to receive(:_begin)
    allow(llm).to receive(:run) { |begun| Struct.new(:text).new(begun.prompt) }
  end

  after { FileUtils.rm_rf(@directories) if @directories }

  plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
  knowing = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}" \
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}" \
            "{% for c in m.tool_calls or [] %}!{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}" \
            "{% endfor %}<assistant>"
  question = [{ role: "user", content: "x" }]
  rolling = { context_overflow: :roll, max_length: 400 }

  it "counts the tokens of tools, as its templates write them" do
    [plain, knowing].each do |template|
      llm = model(template)
      allow(llm).to receive(:_begin) { |ids, _| raise Candle::Error, "#{ids.size} tokens" }
      counts = [:auto, :required, "clock", :none].map do |choice|
        given = { tools: [weather, clock], tool_choice: choice }
        llm.count_tokens(question, **given).tap do |count|
          expect { llm.complete_with_tools(question, **given) }.to raise_error(Candle::Error, "#{count} tokens")
        end
      end
      expect(counts).to match([counts[1], counts[0], be < counts[0], llm.count_tokens(question)])
    end
  end

  describe Candle::Tool do
    it "describes itself in the form of OpenAI's functions" do
      expect(weather.to_tool_definition).to match(
        "type" => "function", "function" => hash_including("name" => "weather", "parameters" => weather.parameters)
      )
      expect(weather.to_h).to eq(weather.to_tool_definition)
      expect(weather.inspect).to eq("#<Candle::Tool weather(city, days)>")
    end

    it "calls its block, and checks arguments that come from a model" do
      expect(weather.call("city" => "Rome")).to include(sky: "clear")
      expect(weather.execute("city" => "Oslo", "days" => 2)).to eq(city: "Oslo", sky: "clear", days: 2)
      { { "city" => "Paris" } => /arguments.city must have enum/, {} => /arguments.city is missing/, [] => /an object/,
        { "city" => "Rome", "days" => "2" } => /arguments.days must be of type integer/,
        { "city" => "Rome", "days" => 9 } => /maximum 7/, { "city" => "Rome", "x" => 1 } => /arguments.x must not/ }
        .each { |bad, message| expect { weather.execute(bad) }.to raise_error(Candle::InvalidInputError, message) }
      expect(clock.execute("anything" => 1)).to eq("noon")
    end

    it "is made of a definition, and of nothing else" do
      made = described_class.all([weather.to_h, { name: "clock", description: "The time" }, clock.to_h["function"]
        .merge("name" => "other")])
      expect(made.map(&:name)).to eq(%w[weather clock other])
      expect(made.map(&:callable?)).to eq([false] * 3)
      expect(made.first.to_h).to eq(weather.to_h)
      expect { described_class.all([weather, -> {}]) }
        .to raise_error(ArgumentError, /tools\[1\] must be a Candle::Tool/)
      expect { described_class.all(weather) }.to raise_error(ArgumentError, /tools must be an Array/)
      expect { described_class.all([clock, clock]) }.to raise_error(ArgumentError, /two tools are named "clock"/)
    end

    it "needs a name and a schema" do
      expect { described_class.new(name: "", description: "") { 1 } }.to raise_error(ArgumentError, /name/)
      expect do
        described_class.new(name: "a", description: "", parameters: 3) do
          1
        end
      end.to raise_error(ArgumentError, /Hash/)
      expect { described_class.new(name: "the weather", description: "") { 1 } }
        .to raise_error(ArgumentError, /made of letters, digits, _, - and . \(64 at most\), not "the weather"/)
      expect { described_class.new(name: "a", description: "").call }.to raise_error(Candle::InvalidInputError, /block/)
    end
  end

  describe Candle::ToolCallParser do
    def found(text, **options)
      result = described_class.parse(text, **options)
      [result.tool_calls.map { |call| [call.name, call.arguments] }, result.text_response]
    end

    {
      'I <tool_call>{"name":"a","arguments":{"x":1}}</tool_call> <tool_call>{"name":"b","arguments":{}}</tool_call>' =>
        [[["a", { "x" => 1 }], ["b", {}]], "I"],
      "<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": {\"y\": \"</b>\"}}}" => [
        [["a", { "x" => { "y" => "</b>" } }]], nil
      ],
      '<tool_call>{"name":"a","arguments":{"x":[1,],}}</tool_call>' => [[["a", { "x" => [1] }]], nil],
      '{"name": "a", "parameters": {"q": "z"}}' => [[["a", { "q" => "z" }]], nil],
      '<|python_tag|>{"name":"a","parameters":{}}; {"name":"b","parameters":{}}<|eom_id|>' => [[["a", {}], ["b", {}]],
                                                                                               nil],
      '[TOOL_CALLS] [{"name":"a","arguments":{"x":[1]}},{"name":"b","arguments":{}}]' => [
        [["a", { "x" => [1] }], ["b", {}]], nil
      ],
      '[TOOL_CALLS]a[ARGS]{"x":1}' => [[["a", { "x" => 1 }]], nil],
      '<function=a>{"x":1}</function>' => [[["a", { "x" => 1 }]], nil],
      "Sure:\n```json\n{\"name\":\"a\",\"arguments\":\"{\\\"x\\\":2}\"}\n```" => [[["a", { "x" => 2 }]], "Sure:"],
      '{"tool_calls":[{"id":"c1","type":"function","function":{"name":"a","arguments":"{}"}}]}' => [[["a", {}]], nil],
      '{"name":"Bob","age":3}' => [[], '{"name":"Bob","age":3}'],
      "just words" => [[], "just words"],
      "<tool_call> oops </tool_call>" => [[], "<tool_call> oops </tool_call>"],
      "```ruby\nputs 1\n```" => [[], "```ruby\nputs 1\n```"],
      "" => [[], nil]
    }.each do |text, expected|
      it("reads #{text[0, 50].inspect}") { expect(found(text)).to eq(expected) }
    end

    it "never raises" do
      random = Random.new(1)
      pieces = ["<tool_call>", "</tool_call>", "{", "}", "[", "]", "\"name\"", ":", "\"a\"", ",", "[TOOL_CALLS]",
                "```json\n",
                "\"arguments\"", "\xff", "\\", "<|python_tag|>", "<function=x>", "1", "null", "\n"]
      2000.times do
        text = Array.new(random.rand(25)) { pieces.sample(random: random) }.join
        expect(described_class.parse(text).tool_calls).to be_an(Array)
      end
      expect(found(nil)).to eq([[], nil])
      expect(found("{" * 5000)).to eq([[], "{" * 5000])
    end

    it "counts a repeated call once, leaves out tools that are not offered, and takes another pattern" do
      call = '<tool_call>{"name":"weather","arguments":{}}</tool_call>'
      expect(found(call * 3).first).to eq([["weather", {}]])
      expect(found(call, available_tools: [clock]).first).to be_empty
      result = described_class.new(pattern: /CALL (.*)$/).parse("CALL {\"name\":\"a\",\"arguments\":{}}\nbye #{call}")
      expect(result.tool_calls).to eq([Candle::ToolCall.new(name: "a", arguments: {})])
      expect(result).to have_tool_calls
    end
  end

  describe "#chat_with_tools" do
    it "gives the text where no tool is called" do
      result = model(plain).chat_with_tools(question, tools: [clock], pattern: /[a-z]{5}/, **rolling)
      expect(result).to have_attributes(tool_calls: [], tool_results: [], text_response: match(/\A[a-z]{5}\z/))
      expect(result).not_to have_tool_calls
      expect(result).to be_success
    end

    [plain, knowing].each do |template|
      it "makes a model call a tool with valid arguments, by #{template == plain ? "text" : "its own template"}" do
        llm = model(template)
        8.times do |seed|
          result = llm.chat_with_tools(question, tools: [weather, clock], tool_choice: :required, execute: true,
                                                 seed: seed,
                                                 temperature: 2.0, **rolling)
          expect(result.tool_calls.size).to eq(1)
          expect(result.tool_results.first).to include(tool_call: result.tool_calls.first, error: nil)
          expect(result).to be_success
        end
        named = llm.chat_with_tools(question, tools: [weather, clock], tool_choice: "weather", **rolling)
        expect(named.tool_calls.first).to have_attributes(name: "weather", arguments: include("city"))
        expect(named.tool_results).to be_empty
      end
    end

    it "moves references inside parameters" do
      tree = Candle::Tool.new(name: "tree", description: "", parameters: {
                                type: "object", properties: { root: { "$ref": "#/$defs/leaf" } }, required: ["root"],
                                "$defs": { leaf: { enum: [7] } }
                              }) { |arguments| arguments["root"] }
      result = model(plain).chat_with_tools(question, tools: [clock, tree], tool_choice: "tree", execute: true,
                                                      **rolling)
      expect(result.tool_results.first[:result]).to eq(7)
    end

    it "tells errors of tools, wrong arguments and unknown tools apart from results" do
      broken = Candle::Tool.new(name: "broken", description: "") { raise "it burns" }
      calls = [["broken", {}], ["nope", {}], ["weather", { "city" => 3 }]].map do |name, arguments|
        "<tool_call>#{JSON.generate({ name: name, arguments: arguments })}</tool_call>"
      end
      llm = model(plain)
      allow(llm).to receive(:answer).and_return(Struct.new(:text).new(calls.join))
      result = llm.chat_with_tools(question, tools: [broken, weather], execute: true)
      expect(result.tool_results.map { |one| one[:error] })
        .to match(["it burns", /unknown tool nope; there are broken, weather/, /invalid arguments for weather/])
      expect(result).not_to be_success
    end

    it "puts definitions, calls and results where the template wants them" do
      history = [*question, { "role" => "assistant", "content" => "",
                              "tool_calls" => [{ "function" => { "name" => "clock", "arguments" => {} } }] },
                 { role: "tool", content: "noon" }, { role: "tool", content: "or so" }]
      seen = [plain, knowing].map do |template|
        llm = model(template)
        unrun(llm)
        llm.chat_with_tools(history, tools: [clock]).raw_response
      end
      expect(seen.first).to match(/\A<system>.*"name":"clock".*<user>x<assistant><tool_call>\n\{"name":"clock",/m)
      expect(seen.first).to end_with("<user><tool_response>\nnoon\n</tool_response>\n" \
                                     "<tool_response>\nor so\n</tool_response><assistant>")
      expect(seen.last).to eq("[clock]<user>x<assistant>!clock{}<tool>noon<tool>or so<assistant>")
    end

    it "instructs through the user where a template takes no system message" do
      refusing = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}" \
                 "<{{ m.role }}>{{ m.content }}{% endfor %}"
      llm = model(refusing)
      unrun(llm)
      expect(llm.chat_with_tools(question, tools: [clock]).raw_response).to match(/\A<user>.*clock.*x\z/m)
    end

    it "refuses choices that don't exist" do
      llm = model(plain)
      expect { llm.chat_with_tools(question, tools: [clock], tool_choice: "x") }.to raise_error(ArgumentError, /clock/)
      expect do
        llm.chat_with_tools(question, tools: [], tool_choice: :required)
      end.to raise_error(ArgumentError, /no tools/)
    end
  end
end
