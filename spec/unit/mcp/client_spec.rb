# frozen_string_literal: true

require "timeout"

RSpec.describe Candle::MCP::Client do
  fixture = File.expand_path("../../fixtures/mcp/server.rb", __dir__)

  # A client of the fixture, closed after the block.
  define_method(:with_client) do |mode = "well", **options, &block|
    described_class.stdio(RbConfig.ruby, fixture, mode, **options, &block)
  end

  # The processes that this one has started and that are still there, zombies among them.
  def children
    own = Process.pid.to_s
    Dir["/proc/[0-9]*/stat"].filter_map do |path|
      fields = File.read(path).rpartition(")").last.split
      path[/\d+/].to_i if fields[1] == own
    rescue SystemCallError
      nil
    end
  end

  around do |example|
    before = children
    example.run
    expect(children - before).to be_empty, "a process is left"
  end

  describe "over standard input and output" do
    it "agrees upon a version and knows the server" do
      with_client do |client|
        expect(client.protocol_version).to eq(Candle::MCP::VERSIONS.first)
        expect(client.server_info).to include("name" => "fixture")
        expect(client.capabilities).to eq("tools" => {})
        expect(client.instructions).to eq("Be kind.")
        expect(client.inspect).to eq("#<Candle::MCP::Client the MCP server #{File.basename(RbConfig.ruby)}>")
      end
    end

    it "takes an older version, and refuses an unknown one" do
      with_client("old") { |client| expect(client.protocol_version).to eq("2024-11-05") }
      expect { with_client("future") }.to raise_error(Candle::MCPError, /speaks version "2099-01-01" .* knows 2025/)
    end

    it "gives tools that check their arguments and return what the server answers" do
      with_client do |client|
        add, echo, fails = client.tools
        expect([add, echo, fails]).to all(be_a(Candle::Tool).and(be_callable))
        expect(add.parameters["required"]).to eq(%w[a b])
        expect(add.execute("a" => 1, "b" => 2.5)).to eq("sum" => 3.5)
        expect(echo.execute("text" => "grüß")).to eq("grüß")
        expect { add.execute("a" => 1) }.to raise_error(Candle::InvalidInputError, /arguments.b is missing/)
        expect { fails.execute({}) }.to raise_error(Candle::MCPToolError, "the tool fail failed: it broke")
      end
    end

    it "lets an agent use them" do
      answers = ['<tool_call>{"name": "add", "arguments": {"a": 20, "b": 22}}</tool_call>', "It is 42."]
      scripted = Class.new do
        include Candle::ToolUse

        define_method(:answer) { |_messages, **| Struct.new(:text).new(answers.shift) }
        define_method(:apply_chat_template) { |messages, tools: nil| [*messages, *tools].to_s }
      end
      with_client do |client|
        result = Candle::Agent.new(scripted.new, tools: client.tools).run("add")
        expect(result.messages.to_s).to include("42")
        expect([result.response, result.tool_calls_made]).to eq(["It is 42.", 1])
      end
    end

    it "reads all pages of tools, and makes their names fit" do
      with_client("pages") do |client|
        expect(client.tools.map(&:name)).to eq(%w[tool_0 tool_0_2 tool_1 tool_1_2 tool_2 tool_2_2])
      end
      with_client("circle") { |client| expect { client.tools }.to raise_error(Candle::MCPError, /in a circle/) }
    end

    it "answers a server's ping, and refuses what it does not know" do
      with_client do |client|
        expect(JSON.parse(client.call_tool("ask"))).to eq("s1" => {}, "s2" => -32_601)
      end
    end

    it "reads images, resources and batches" do
      with_client("batch") do |client|
        expect(client.call_tool("picture")).to eq("[image image/png]\ninside\nfile:///b")
      end
    end

    it "raises the server's errors with their code" do
      with_client do |client|
        expect { client.call_tool("unknown") }
          .to raise_error(an_instance_of(Candle::MCPError).and(having_attributes(code: -32_602)))
        expect { client.request("resources/list") }.to raise_error(Candle::MCPError, /unknown method/)
        expect(client.ping).to be(true)
      end
    end

    it "sets variables for the program, and runs no shell" do
      with_client(env: { "MCP_FIXTURE" => "set" }) do |client|
        expect(client.call_tool(:environment, { name: "MCP_FIXTURE" })).to eq("set")
      end
      expect { described_class.stdio("echo hello; true") }.to raise_error(Candle::MCPError, /can't be started/)
      expect { described_class.stdio("ruby", env: { 1 => 2 }) }.to raise_error(ArgumentError, /env must be/)
    end

    it "can be used by many threads" do
      with_client do |client|
        threads = Array.new(8) do |index|
          Thread.new { Array.new(20) { |turn| client.call_tool("echo", { text: "#{index}.#{turn}" }) } }
        end
        expected = Array.new(8) { |index| Array.new(20) { |turn| "#{index}.#{turn}" } }
        expect(threads.map(&:value)).to eq(expected)
      end
    end

    it "checks its own arguments" do
      [0, -1, nil, "1", Float::NAN, Float::INFINITY].each do |timeout|
        expect { with_client(timeout: timeout) }.to raise_error(ArgumentError, /timeout must be a positive number/)
      end
      expect { with_client(limit: 0) }.to raise_error(ArgumentError, /limit must be a positive/)
      with_client(limit: 1000) do |client|
        expect do
          client.call_tool("echo", { text: "x" * 1000 })
        end.to raise_error(Candle::MCPError, /more than limit: 1000/)
        expect(client.ping).to be(true)
      end
    end
  end

  describe "of a server that misbehaves" do
    { "garbage" => /sent invalid JSON: "Welcome to my server!"/, "no_message" => /an invalid JSON-RPC 2.0 message/,
      "dies" => /has ended \(exit 1\): no configuration/, "closes" => /closed its output/,
      "huge" => /a message of more than limit: 33554432 bytes/ }.each do |mode, message|
      it "raises: #{mode}" do
        with_client(mode) do |client|
          expect { client.call_tool("echo", { text: "x" }) }.to raise_error(Candle::MCPError, message)
          expect(client).to be_closed
          expect { client.ping }.to raise_error(Candle::MCPError, message)
        end
      end
    end

    { "garbage_first" => /invalid JSON/, "dies_first" => /has ended/ }.each do |mode, message|
      it "raises while it begins: #{mode}" do
        expect { with_client(mode) }.to raise_error(Candle::MCPError, message)
      end
    end

    %w[hangs_first deaf].each do |mode|
      it "ends the wait: #{mode}" do
        taken = seconds do
          expect { with_client(mode, timeout: 0.5) }.to raise_error(Candle::MCPTimeoutError, /initialize in time/)
        end
        expect(taken).to be < 8
      end
    end

    it "goes on after a call that took too long" do
      with_client do |client|
        expect { client.call_tool("slow", { seconds: 1 }, timeout: 0.2) }.to raise_error(Candle::MCPTimeoutError)
        expect(client.call_tool("echo", { text: "still here" })).to eq("still here")
      end
    end

    it "ends the wait when the thread is interrupted" do
      with_client do |client|
        taken = seconds do
          expect { Timeout.timeout(0.3) { client.call_tool("slow", { seconds: 1 }) } }.to raise_error(Timeout::Error)
        end
        expect(taken).to be < 0.9
        expect(client.ping).to be(true)
      end
    end

    it "ends the calls that wait when it is closed, and a process that does not want to end" do
      client = with_client("stubborn")
      waiting = Thread.new { client.call_tool("echo", { text: "x" }) }
      waiting.report_on_exception = false
      sleep 0.2
      client.close
      expect { waiting.value }.to raise_error(Candle::MCPError, /was closed/)
      expect { client.tools }.to raise_error(Candle::MCPError, /was closed/)
      expect(client.close).to be_nil
    end

    it "does not take the blame of another process" do
      with_client do |client|
        reader, writer = IO.pipe
        child = fork do
          client.ping
        rescue Candle::MCPError => e
          writer.write(e.message)
        ensure
          exit!(0)
        end
        writer.close
        Process.wait(child)
        expect(reader.read).to match(/belongs to the process that started it/)
      end
    end

    it "leaves no process behind a program that ends without closing" do
      output, _, status = run_ruby(<<~RUBY, within: 30)
        client = Candle::MCP::Client.stdio(#{RbConfig.ruby.inspect}, #{fixture.inspect}, "stubborn")
        Thread.new { client.call_tool("echo", { text: "x" }) }.report_on_exception = false
        sleep 0.2
        transport = ObjectSpace.each_object(Candle::MCP::Stdio).first
        puts transport.pid
      RUBY
      expect(status).to be_success
      expect { Process.kill(0, Integer(output)) }.to raise_error(Errno::ESRCH)
    end
  end

  describe "over HTTP" do
    def serve(&block)
      server = MCPWebServer.new do |message, headers|
        next MCPWebServer.welcome(message, "mcp-session-id" => "s-1") if message["method"] == "initialize"

        block&.call(message, headers)
      end
      yielded = described_class.http(server.url, headers: { "Authorization" => "Bearer x" }, timeout: 3)
      [server, yielded]
    end

    def served(&block)
      @server, client = serve(&block)
      client
    end

    after { @server&.stop }

    it "sends the session, the version and given headers, and ends the session" do
      client = served { |message| MCPWebServer.json(message, {}) if message["id"] }
      expect(client.ping).to be(true)
      client.close
      first, second, third, last = @server.received
      expect(first[:headers]).to include("authorization" => "Bearer x",
                                         "accept" => "application/json, text/event-stream")
      expect(first[:headers].keys).not_to include("mcp-session-id", "mcp-protocol-version")
      expect(second[:message]["method"]).to eq("notifications/initialized")
      expect([second, third, last].map { |request| request[:headers] })
        .to all(include("mcp-session-id" => "s-1", "mcp-protocol-version" => "2025-06-18"))
      expect(last[:verb]).to eq("DELETE")
      expect { client.ping }.to raise_error(Candle::MCPError, /was closed/)
    end

    it "reads streams of events, and answers what the server asks in them" do
      answered = Queue.new
      client = served do |message|
        next (answered << message) && nil unless message["method"]
        next unless message["id"]

        parts = [": hello\r\n\r\n", "event: message\nid: 1\ndata: {\"jsonrpc\": \"2.0\",\ndata: \"id\": 9, ",
                 "\"method\": \"ping\"}\n\n",
                 "data: {\"jsonrpc\":\"2.0\",\"id\":#{message["id"]},\"result\":{\"a\":1}}\n\n"]
        [200, { "content-type" => "text/event-stream" }, lambda { |socket|
          parts.each { |part| socket.write(part) }
          sleep 5
        }]
      end
      taken = seconds { expect(client.request("x")).to eq("a" => 1) }
      expect(taken).to be < 3
      expect(answered.pop).to eq("jsonrpc" => "2.0", "id" => 9, "result" => {})
    end

    it "begins a new session when the server has forgotten the old one" do
      asked = 0
      client = served do |message|
        next unless message["id"]

        (asked += 1) == 1 ? [404, {}, "gone"] : MCPWebServer.json(message, {})
      end
      expect(client.ping).to be(true)
      expect(@server.received.map { |request| request[:message]["method"] })
        .to eq(%w[initialize notifications/initialized ping initialize notifications/initialized ping])
    end

    { "a refusal" => [[401, {}, "who are you?"], /status 401: who are you\?/],
      "another type" => [[200, { "content-type" => "text/html" }, "<html>"], %r{text/html instead of JSON}],
      "garbage" => [[200, { "content-type" => "application/json" }, "hello"], /invalid JSON: "hello"/],
      "a stream without an answer" => [[200, { "content-type" => "text/event-stream" }, ""], /has not answered x/],
      "a redirect" => [[302, { "location" => "http://127.0.0.1:1/" }, ""], /status 302/] }
      .each do |what, (answer, message)|
        it "raises for #{what}" do
          client = served { |request| answer if request["id"] }
          expect { client.request("x") }.to raise_error(Candle::MCPError, message)
        end
      end

    it "raises for answers without an end" do
      endless = lambda do |socket|
        socket.write("data: ")
        loop { socket.write("x" * 1_000_000) }
      end
      %w[application/json text/event-stream].each do |type|
        client = served { |request| [200, { "content-type" => type }, endless] if request["id"] }
        expect { client.request("x", timeout: 20) }.to raise_error(Candle::MCPError, /more than limit: 33554432 bytes/)
      end
    end

    it "ends the wait for a server that is silent or slow" do
      drop = lambda do |socket|
        loop { sleep(0.1) && socket.write(": wait\n") }
      end
      client = served { |request| [200, { "content-type" => "text/event-stream" }, drop] if request["id"] }
      taken = seconds { expect { client.request("x", timeout: 0.5) }.to raise_error(Candle::MCPTimeoutError) }
      expect(taken).to be < 2
      expect { Timeout.timeout(0.2) { client.request("x") } }.to raise_error(Timeout::Error)
    end

    it "raises where there is no server, and for another URL" do
      port = TCPServer.open("127.0.0.1", 0) { |server| server.addr[1] }
      expect { described_class.http("http://127.0.0.1:#{port}/") }.to raise_error(Candle::MCPError, /can't be reached/)
      ["file:///etc", "hello", "http://", "http://a b"].each do |url|
        expect { described_class.http(url) }.to raise_error(ArgumentError, /url must be an http or https URL/)
      end
    end
  end
end
