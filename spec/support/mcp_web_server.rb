# frozen_string_literal: true

require "json"
require "socket"

# An MCP server over streamable HTTP in this process. The block gets each message with the headers of its request, and
# returns what is written back: `[status, headers, body]`. A body that is a Proc writes to the socket itself.
class MCPWebServer
  # @return [Array<Hash>] what was received: `:verb`, `:headers`, `:message`
  attr_reader :received

  def initialize(&block)
    @block = block
    @received = []
    @server = TCPServer.new("127.0.0.1", 0)
    @thread = Thread.new { loop { Thread.new(@server.accept) { |socket| serve(socket) } } }
  end

  def url = "http://127.0.0.1:#{@server.addr[1]}/mcp"

  def stop
    @thread.kill.join
    @server.close
  end

  # @return [Array] an answer to a request
  def self.json(message, result, headers = {})
    body = JSON.generate({ jsonrpc: "2.0", id: message["id"], result: result })
    [200, { "content-type" => "application/json" }.merge(headers), body]
  end

  # @return [Array] the answer to `initialize`
  def self.welcome(message, headers = {})
    json(message, { protocolVersion: "2025-06-18", capabilities: {}, serverInfo: { name: "web" } }, headers)
  end

  private

  def serve(socket)
    Thread.current.report_on_exception = false
    verb = socket.gets.to_s.split.first
    headers = {}
    while (line = socket.gets&.chomp) && !line.empty?
      name, value = line.split(": ", 2)
      headers[name.downcase] = value
    end
    message = JSON.parse(socket.read(headers["content-length"].to_i)) if headers["content-length"]
    @received << { verb: verb, headers: headers, message: message }
    write(socket, *answer(message, headers))
  ensure
    socket.close
  end

  def answer(message, headers)
    return [200, {}, ""] if message.nil?

    @block.call(message, headers) || [202, {}, ""]
  end

  def write(socket, status, headers, body)
    headers = { "connection" => "close" }.merge(headers)
    headers["content-length"] = body.bytesize if body.is_a?(String)
    socket.write("HTTP/1.1 #{status} X\r\n#{headers.map { |name, value| "#{name}: #{value}\r\n" }.join}\r\n")
    body.is_a?(String) ? socket.write(body) : body.call(socket)
  end
end
