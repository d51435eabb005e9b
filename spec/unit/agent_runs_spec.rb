# frozen_string_literal: true

require "json"

# What an agent does beyond calling tools: events, budgets, approval, bounds of tools, and going on later.
RSpec.describe Candle::Agent do
  include ScriptedRuns

  template = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}<{{ m.role }}>" \
             "{{ m.content }}{% for c in m.tool_calls or [] %}!{{ c.function.name }}{% endfor %}{% endfor %}" \
             "{# <think> <tool_call> #}"
  call = ->(name, **given) { "<tool_call>\n#{JSON.generate({ name: name, arguments: given })}\n</tool_call>\n" }

  let(:llm) { ScriptedRuns.model(template) }

  def tool(name, &block) = Candle::Tool.new(name: name, description: name, &block)

  # An agent whose model says texts, one for each step.
  def agent(*texts, tools:, **options)
    @runs = script(llm, *texts, "")
    described_class.new(llm, tools: tools, **options)
  end

  def told(result) = result.messages.filter_map { |message| message[:content] if message[:role] == "tool" }

  it "tells reasoning, text, calls, results and the end, in their order" do
    events = []
    result = agent("<think>hm</think>I look. #{call["clock"]}", "<think>so</think>It is noon.",
                   tools: [tool("clock") { "noon" }]).run("What time?") { |event| events << event }
    types = events.map(&:type).chunk_while { |one, other| one == other }.map(&:first)
    expect(types).to eq(%i[reasoning text tool_call tool_result reasoning text done])
    texts = events.select { |event| event.type == :text }.group_by(&:iteration)
    expect(texts.transform_values { |group| group.map(&:text).join }).to eq(1 => "I look.", 2 => "It is noon.")
    expect(events.last).to have_attributes(text: "It is noon.", iteration: 2)
    expect(result).to have_attributes(response: "It is noon.", reasoning: "so", status: :done, tool_calls_made: 1)
    expect(result.messages[1]).to include(reasoning_content: "hm")
  end

  it "runs the calls of one turn at the same time, and keeps their order" do
    gate = Queue.new
    first = tool("first") { gate.pop.to_s }
    second = tool("second") { gate << 7 and "b" }
    events = []
    result = agent(call["first"] + call["second"], "Done.", tools: [first, second], tool_timeout: 10)
             .run("x") { |event| events << event }
    expect(told(result)).to eq(%w[7 b])
    results = events.select { |event| event.type == :tool_result }
    expect(results.map { |event| event.tool_call.name }).to eq(%w[second first])
    threads = []
    one = tool("first") { threads << Thread.current && "a" }
    agent(call["first"], "Done.", tools: [one], parallel: false, tool_timeout: nil).run("x")
    expect(threads).to eq([Thread.current])
  end

  it "ends tools that hang, tells what tools raise, and cuts long results off" do
    broken = tool("broken") { raise "it burns" }
    hanging = nil
    stuck = tool("stuck") do
      hanging = Thread.current
      sleep
    end
    long = tool("long") { "x" * 10_000_000 }
    deep = tool("deep") { (recursion = ->(depth) { recursion.call(depth + 1) }).call(0) }
    result = agent(%w[broken stuck long deep].map { |name| call[name] }.join, "Done.",
                   tools: [broken, stuck, long, deep], tool_timeout: 0.2, max_result: 100).run("x")
    expect(told(result)).to match(["Error: it burns", /\AError: the tool stuck took longer/,
                                   /\Ax{100}\n\[cut off: the result has 10000000 characters/,
                                   /\AError: stack level too deep/])
    expect(result.response).to eq("Done.")
    expect(hanging.join(5)).not_to be_nil
  end

  it "ends tools that run agents that run the same tool" do
    depth = deepest = 0
    helper = nil
    again = tool("again") do
      deepest = [deepest, depth += 1].max
      helper.run("go on").response
    ensure
      depth -= 1
    end
    helper = described_class.new(llm, tools: [again], max_iterations: 2)
    allow(llm).to receive(:_begin) do |ids, settings|
      prompt = llm.tokenizer.decode(ids.to_a)
      text = prompt.include?("<tool>") ? "told: #{prompt[/<tool>(.*)/m, 1]}" : call["again"]
      ScriptedRuns::Run.new(llm.tokenizer, llm.tokenizer.encode(text, add_special_tokens: false), ids.to_a, settings)
    end
    before = Thread.list.size
    expect(helper.run("begin").response).to include("tools are nested more than 8 levels deep")
    expect(deepest).to eq(8)
    expect(Thread.list.size).to be <= before
    # One after the other in the calling thread too.
    helper = described_class.new(llm, tools: [again], max_iterations: 2, parallel: false, tool_timeout: nil)
    expect(helper.run("begin").response).to include("more than 8 levels deep")
    expect(helper.run("begin").response).to include("more than 8 levels deep")
  end

  it "keeps the conversations of several threads apart" do
    allow(llm).to receive(:_begin) do |ids, settings|
      prompt = llm.tokenizer.decode(ids.to_a)
      sleep 0.01
      text = prompt.include?("<tool>") ? prompt[/<user>(\w+)/, 1] : call["wait"]
      ScriptedRuns::Run.new(llm.tokenizer, llm.tokenizer.encode(text, add_special_tokens: false), ids.to_a, settings)
    end
    one = described_class.new(llm, tools: [tool("wait") { sleep 0.01 && "ok" }])
    names = Array.new(8) { |index| "run#{index}" }
    results = names.map { |name| Thread.new { one.run(name) } }.map(&:value)
    expect(results.map(&:response)).to eq(names)
    expect(results.map { |result| result.messages.size }).to all(eq(3))
    expect { one.run("x") { |event| one.resume if event.type == :tool_call } }
      .to raise_error(Candle::InvalidInputError, /is running/)
    expect(one.run("again").response).to eq("again")
  end

  it "stops when the budget of tokens is spent, and never generates more" do
    clock = tool("clock") { "noon" }
    texts = Array.new(9) { |index| call["clock", n: index] }
    limited = agent(*texts, tools: [clock], max_tokens: 100)
    expect { limited.run("x") }.to raise_error(Candle::AgentBudgetError, /within 100 tokens/) { |error|
      expect(error).to be_a(Candle::AgentMaxIterationsError)
      expect(error.messages.size).to be > 2
    }
    expect(limited.state.tokens).to be_between(100, 100)
    expect(@runs.map { |_, settings| settings[:max_new_tokens] }).to all(be <= 100)
    expect { described_class.new(llm, tools: [], max_tokens: 0) }.to raise_error(ArgumentError, /max_tokens/)
  end

  it "stops when its time is over, also within a tool" do
    slow = tool("slow") { sleep }
    began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    expect { agent(call["slow"], call["slow", a: 1], tools: [slow], max_seconds: 0.3, tool_timeout: 30).run("x") }
      .to raise_error(Candle::AgentBudgetError, /within 0.3 seconds/)
    expect(Process.clock_gettime(Process::CLOCK_MONOTONIC) - began).to be < 5
    expect { described_class.new(llm, tools: [], max_seconds: -1) }.to raise_error(ArgumentError, /max_seconds/)
  end

  describe "approval" do
    it "lets a person refuse calls, which the model is told" do
      asked = []
      made = []
      remove = tool("remove") { made << 1 }
      approve = lambda do |wanted|
        asked << wanted
        false
      end
      result = agent(call["remove", file: "a"], "I did not.", tools: [remove], approve: approve).run("x")
      expect(asked.map(&:arguments)).to eq([{ "file" => "a" }])
      expect(made).to be_empty
      expect(told(result)).to eq(["Error: the user did not approve this call"])
    end

    it "may wait, and goes on in another process" do
      remove = tool("remove") { |arguments| "removed #{arguments["file"]}" }
      waiting = agent(call["remove", file: "a"], tools: [remove], approve: ->(_) { :wait })
      events = []
      result = waiting.run("Tidy up.") { |event| events << event.type }
      expect(result).to be_waiting
      expect(result.response).to be_nil
      expect(events.last).to eq(:done)
      saved = JSON.generate(waiting.to_h)

      script(llm, "It is gone.")
      later = described_class.from_h(JSON.parse(saved), llm, tools: [remove], approve: ->(_) { true })
      expect(later.state.pending_calls.first).to have_attributes(name: "remove", arguments: { "file" => "a" })
      result = later.resume
      expect(told(result)).to eq(["removed a"])
      expect(result).to have_attributes(response: "It is gone.", iterations: 2, tool_calls_made: 1, status: :done)
    end
  end

  it "goes on after an interruption, with what it had" do
    clock = tool("clock") { "noon" }
    cut = agent(call["clock"], tools: [clock])
    expect { cut.run("x") { |event| raise Interrupt, "no" if event.type == :tool_result } }.to raise_error(Interrupt)
    expect(cut.state.pending.size).to eq(1)
    script(llm, "Noon.")
    expect(described_class.from_h(cut.to_h, llm, tools: [clock]).resume.response).to eq("Noon.")
    expect { described_class.new(llm, tools: [clock]).resume }.to raise_error(Candle::InvalidInputError, /not started/)
    expect { described_class.from_h({}, llm, tools: [clock]) }.to raise_error(ArgumentError, /with messages/)
    expect(described_class.new(llm, tools: [clock]).to_h).to be_nil
  end

  it "is traced as events of ActiveSupport" do
    seen = []
    notifications = Module.new
    notifications.define_singleton_method(:notifier) { Struct.new(:name) { def listening?(_) = true }.new }
    notifications.define_singleton_method(:instrument) do |name, payload = {}, &block|
      block.call(payload).tap { seen << [name, payload] }
    end
    stub_const("ActiveSupport::Notifications", notifications)
    agent(call["clock"], "Noon.", tools: [tool("clock") { "noon" }]).run("x")
    names = seen.map(&:first)
    expect(names.count("agent_step.candle")).to eq(2)
    expect(names.count("tool.candle")).to eq(1)
    expect(names.last).to eq("agent.candle")
    expect(seen.last.last).to include(iterations: 2, tool_calls: 1, tools: ["clock"], tokens: be > 0)
    expect(seen.assoc("tool.candle").last).to include(tool: "clock", error: nil)
  end

  it "solves a small task with a model of random weights that is constrained to call" do
    roomy = Candle::LLM.from_pretrained(RoomyLLM.path)
    said = []
    pick = Candle::Tool.new(name: "pick", description: "Picks", parameters: {
                              type: "object", properties: { side: { enum: %w[left right] } }, required: ["side"],
                              additionalProperties: false
                            }) { |arguments| (said << arguments["side"]).last }
    expect do
      described_class.new(roomy, tools: [pick], max_iterations: 2)
                     .run("x", tool_choice: :required, temperature: 1.0, seed: 3, max_length: 100)
    end.to raise_error(Candle::AgentMaxIterationsError)
    expect(said.size).to eq(2)
    expect(said).to all(eq("left").or(eq("right")))
  end

  it "opens a lock end to end: the model tries digits until it hears a click, and then answers" do
    roomy = Candle::LLM.from_pretrained(RoomyLLM.path)
    code = [2, 1]
    opened = []
    press = Candle::Tool.new(name: "press", description: "Presses a digit", parameters: {
                               type: "object", properties: { digit: { enum: [1, 2] } }, required: ["digit"],
                               additionalProperties: false
                             }) do |given|
      next "no" unless given["digit"] == code[opened.size]

      opened << given["digit"]
      "click"
    end
    agent = described_class.new(roomy, tools: [press], max_iterations: 40, max_tokens: 4000, max_seconds: 60)
    events = []
    stopped = catch(:open) do
      agent.run("Open it.", tool_choice: "press", temperature: 3.0, seed: 5, max_length: 60) do |event|
        events << event.type
        throw :open, true if event.type == :tool_result && opened == code
      end
    end
    expect(stopped).to be(true)
    expect(opened).to eq(code)
    expect(events.tally.values_at(:tool_call, :tool_result).uniq.size).to eq(1)
    state = JSON.parse(JSON.generate(agent.to_h))
    result = described_class.from_h(state, roomy, tools: [press], max_iterations: 60)
                            .resume(tool_choice: :none, max_length: 6, temperature: 0)
    expect(result.response).to be_a(String)
    expect(result.messages.count { |message| message[:role] == "tool" }).to be >= 2
  end
end
