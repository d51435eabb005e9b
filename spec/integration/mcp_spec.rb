# frozen_string_literal: true

require "open3"
require "socket"

# The protocol's own SDK on the other side.
RSpec.describe "MCP" do
  let(:python) do
    found, reason = Clients.mcp
    skip(reason) unless found
    found
  end
  let(:script) { File.join(Clients::SCRIPTS, "mcp_server.py") }

  def check(client)
    expect(client).to have_attributes(server_info: include("name" => "reference"), instructions: "Be kind.", ping: true)
    expect(client.tools.map(&:name)).to eq(%w[add say broken])
    expect(client.tools.first.execute("a" => 1, "b" => 2)).to eq("result" => 3)
    answers = Array.new(4) { |index| Thread.new { client.call_tool("say", { text: "grüß #{index}" }) } }
    expect(answers.map(&:value)).to eq(["grüß 0", "grüß 1", "grüß 2", "grüß 3"])
    check_errors(client)
  end

  def check_errors(client)
    expect { client.call_tool("broken") }.to raise_error(Candle::MCPToolError, /broken/)
    expect { client.call_tool("add", { a: "x" }) }.to raise_error(Candle::MCPToolError, /add/)
    expect { client.request("nonsense") }.to raise_error(Candle::MCPError, /nonsense/)
  end

  def listening?(port)
    TCPSocket.new("127.0.0.1", port).close
    true
  rescue SystemCallError
    false
  end

  it "is understood by the SDK's server over standard input and output" do
    Candle::MCP::Client.stdio(python, script, "stdio") { |client| check(client) }
  end

  %w[json events].each do |form|
    it "is understood by the SDK's server over HTTP: #{form}" do
      port = TCPServer.open("127.0.0.1", 0) { |server| server.addr[1] }
      process = Process.spawn(python, script, form, port.to_s, %i[out err] => File::NULL)
      stop = now + 30
      sleep 0.1 until listening?(port) || now > stop
      Candle::MCP::Client.http("http://127.0.0.1:#{port}/mcp") { |client| check(client) }
    ensure
      if process
        Process.kill("KILL", process)
        Process.wait(process)
      end
    end
  end

  it "is understood by the SDK's client" do
    command = [RbConfig.ruby, "-I#{ChildRuby::LIB}", File.expand_path("../../exe/red-candle", __dir__), "mcp",
               "--embed", TinyModels.path("bert-sentence"), "--rerank", TinyModels.path("bert-reranker"),
               "--ner", TinyModels.path("bert-token"), "--chat", TinyModels.path("gguf-decoders/llama")]
    output, status = Open3.capture2e(python, File.join(Clients::SCRIPTS, "mcp_client.py"), *command)
    expect(status).to be_success, output
  end
end
