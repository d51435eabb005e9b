# frozen_string_literal: true

require "stringio"

RSpec.describe Candle::MCP::Server do
  sum = Candle::Tool.new(name: "sum", description: "Adds", parameters: {
                           type: "object", properties: { a: { type: "number" }, b: { type: "number" } },
                           required: %w[a b]
                         }) { |arguments| { sum: arguments["a"] + arguments["b"] } }
  say = Candle::Tool.new(name: "say", description: "Says it") { |arguments| arguments[:text] || [1, nil] }
  broken = Candle::Tool.new(name: "broken", description: "Fails") { raise "no luck" }

  wrong = Candle::Tool.new(name: "wrong", description: "Returns what JSON can't hold") do |arguments|
    arguments["text"] ? "\xff" : { number: Float::NAN }
  end

  let(:server) { described_class.new(tools: [sum, say, broken, wrong], name: "test", instructions: "Add.") }

  def line(id, method, params = nil)
    JSON.generate({ jsonrpc: "2.0", id: id, method: method, params: params }.compact)
  end

  def call(id, name, arguments = nil)
    line(id, "tools/call", { name: name, arguments: arguments }.compact)
  end

  # What the server writes for these lines; answers of calls may come in any order.
  def written(*lines)
    output = StringIO.new
    server.run(StringIO.new(lines.map { |line| "#{line}\n" }.join), output)
    output.string.lines.map { |line| JSON.parse(line) }
  end

  def result(*lines)
    answers = written(*lines)
    expect(answers.size).to eq(1)
    answers.first["result"] || answers.first["error"]
  end

  it "agrees upon the client's version, or names its own" do
    expect(result(line(1, "initialize", { protocolVersion: "2025-03-26" })))
      .to eq("protocolVersion" => "2025-03-26", "capabilities" => { "tools" => { "listChanged" => false } },
             "serverInfo" => { "name" => "test", "version" => Candle::VERSION }, "instructions" => "Add.")
    expect(result(line(1, "initialize", { protocolVersion: "1999" }))["protocolVersion"])
      .to eq(Candle::MCP::VERSIONS.first)
  end

  it "lists its tools with their schemas" do
    tools = result(line("a", "tools/list"))["tools"]
    expect(tools.map { |tool| tool["name"] }).to eq(%w[sum say broken wrong])
    expect(tools.first["inputSchema"]).to include("type" => "object", "required" => %w[a b])
    expect(tools.last["inputSchema"]).to eq("type" => "object")
    expect(result(line(1, "tools/list", { cursor: "x" }))["code"]).to eq(-32_602)
  end

  it "returns objects as structured content, and everything as text" do
    expect(result(call(1, "sum", { a: 1, b: 2 })))
      .to eq("content" => [{ "type" => "text", "text" => '{"sum":3}' }], "isError" => false,
             "structuredContent" => { "sum" => 3 })
    expect(result(call(1, "say", { text: "grüß" }))["content"]).to eq([{ "type" => "text", "text" => "grüß" }])
    expect(result(call(1, "say"))).to eq("content" => [{ "type" => "text", "text" => "[1,null]" }], "isError" => false)
  end

  it "answers invalid arguments and failures as errors of the tool" do
    allow(Candle.logger).to receive(:warn)
    expect(result(call(1, "sum", { a: 1 }))).to include("isError" => true, "content" => [
                                                          { "type" => "text",
                                                            "text" => /invalid arguments for sum: arguments.b is miss/ }
                                                        ])
    expect(result(call(1, "sum", [1]))["isError"]).to be(true)
    expect(result(call(1, "broken"))).to include("isError" => true,
                                                 "content" => [{ "type" => "text", "text" => "no luck" }])
    expect([{}, { text: "" }].map { |given| result(call(1, "wrong", given))["isError"] }).to all(be(true))
    expect(Candle.logger).to have_received(:warn).exactly(5).times
  end

  { "an unknown tool" => ['{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}', 1, -32_602],
    "an unknown method" => ['{"jsonrpc":"2.0","id":"a","method":"resources/list"}', "a", -32_601],
    "malformed JSON" => ["{bad", nil, -32_700], "what is not UTF-8" => ["\"\xff\"", nil, -32_700],
    "what is nested without end" => ["[" * 1000, nil, -32_700],
    "another version of JSON-RPC" => ['{"jsonrpc":"1.0","id":1,"method":"ping"}', 1, -32_600],
    "no method" => ['{"jsonrpc":"2.0","id":1}', 1, -32_600], "a number" => ["1", nil, -32_600],
    "an id of null" => ['{"jsonrpc":"2.0","id":null,"method":"ping"}', nil, -32_600],
    "params that are a list" => ['{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}', 1, -32_600],
    "an empty batch" => ["[]", nil, -32_600],
    "a batch in a version without" => ['[{"jsonrpc":"2.0","id":1,"method":"ping"}]', nil, -32_600] }
    .each do |what, (text, id, code)|
      it "answers #{what} with the error #{code}, and goes on" do
        first, second = written(text, line(2, "ping"))
        first, second = second, first if first["id"] == 2
        expect([first["id"], first.dig("error", "code")]).to eq([id, code])
        expect(second).to eq("jsonrpc" => "2.0", "id" => 2, "result" => {})
      end
    end

  it "takes batches in the versions that have them" do
    batch = [{ jsonrpc: "2.0", id: 2, method: "ping" }, { jsonrpc: "2.0", method: "notifications/x" }, 7,
             { jsonrpc: "2.0", id: 3, method: "tools/call", params: { name: "sum", arguments: { a: 1, b: 1 } } },
             { jsonrpc: "2.0", id: 4, method: "initialize" }]
    _, answers, *rest = written(line(1, "initialize", { protocolVersion: "2025-03-26" }), JSON.generate(batch),
                                JSON.generate([{ jsonrpc: "2.0", method: "notifications/x" }]))
    expect(rest).to be_empty
    expect(answers.map { |answer| answer["id"] }).to eq([2, nil, 3, 4])
    expect(answers.map { |answer| answer.dig("error", "code") }).to eq([nil, -32_600, nil, -32_600])
  end

  it "answers neither notifications nor answers nor empty lines" do
    expect(written('{"jsonrpc":"2.0","method":"notifications/initialized"}', '{"jsonrpc":"2.0","method":"unknown"}',
                   '{"jsonrpc":"2.0","id":5,"result":{}}', "", "  ")).to be_empty
  end

  it "refuses a line beyond the limit, and goes on" do
    stub_const("Candle::MCP::LIMIT", 100)
    first, second = written("x" * 1000, line(1, "ping"))
    expect(first.dig("error", "code")).to eq(-32_600)
    expect(second["id"]).to eq(1)
  end

  describe "of a client that waits" do
    # Runs the server beside the example, which writes and reads lines.
    def conversation(*tools)
      input, ours = IO.pipe
      theirs, output = IO.pipe
      thread = Thread.new { described_class.new(tools: tools).run(input, output) }
      yield ours, theirs
    ensure
      ours.close
      thread.join(5) || thread.kill
      [input, theirs, output].each(&:close)
    end

    it "answers others during a call, ends a cancelled one without an answer, and keeps to its limit" do
      started = Queue.new
      ended = Queue.new
      wait = Candle::Tool.new(name: "wait", description: "Waits") do
        started << true
        sleep
      ensure
        ended << true
      end
      conversation(wait) do |client, answers|
        client.puts(call(1, "wait"))
        started.pop
        client.puts(line(2, "ping"), call(1, "wait"))
        expect(JSON.parse(answers.gets)).to include("id" => 2)
        expect(JSON.parse(answers.gets)).to include("id" => 1, "error" => include("message" => /in use/))
        client.puts('{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}')
        expect(ended.pop).to be(true)
        client.puts((1..17).map { |id| call(id, "wait") })
        expect(JSON.parse(answers.gets)).to include("id" => 17, "error" => include("message" => /16 calls are running/))
        (1..16).each do |id|
          client.puts(%({"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":#{id}}}))
        end
        client.puts(line(3, "ping"))
        expect(JSON.parse(answers.gets)).to include("id" => 3)
      end
    end

    it "ends when nobody reads any more" do
      input, ours = IO.pipe
      theirs, output = IO.pipe
      theirs.close
      ours.puts(line(1, "ping"), call(2, "say"))
      ours.close
      expect(described_class.new(tools: [say]).run(input, output)).to be_nil
    end
  end

  it "needs tools with blocks" do
    idle = Candle::Tool.new(name: "idle", description: "")
    expect { described_class.new(tools: [idle]) }.to raise_error(ArgumentError, /no block to call/)
    expect { described_class.new(tools: 1) }.to raise_error(ArgumentError, /tools must be an Array/)
  end
end
