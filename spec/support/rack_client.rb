# frozen_string_literal: true

require "json"
require "stringio"

# Asks a Rack application without a socket.
module RackClient
  Answer = Struct.new(:status, :headers, :text) do
    def json
      JSON.parse(text)
    end

    # @return [Array<Hash, String>] the data of server-sent events
    def events
      text.scan(/^data: (.+)$/).flatten.map { |data| data.start_with?("{") ? JSON.parse(data) : data }
    end

    # @return [Array<Array(String, Hash)>] the names and data of server-sent events
    def named_events
      text.scan(/^event: (.+)\ndata: (.+)$/).map { |name, data| [name, JSON.parse(data)] }
    end

    def lines
      text.lines.map { |line| JSON.parse(line) }
    end
  end

  def ask(app, verb, path, body = nil, headers = {})
    env = { "REQUEST_METHOD" => verb, "PATH_INFO" => path, "SCRIPT_NAME" => "", "REMOTE_ADDR" => "127.0.0.1",
            "HTTP_HOST" => "localhost:8080" }
    input = body.nil? || body.is_a?(String) ? body.to_s : JSON.generate(body)
    env["rack.input"] = StringIO.new(input)
    env["CONTENT_LENGTH"] = input.bytesize.to_s
    status, answered, parts = app.call(env.merge(headers))
    text = +""
    parts.each { |part| text << part }
    Answer.new(status, answered, text)
  ensure
    parts.close if parts.respond_to?(:close)
  end

  def get(app, path, headers = {}) = ask(app, "GET", path, nil, headers)
  def post(app, path, body, headers = {}) = ask(app, "POST", path, body, headers)
end

RSpec.configure { |config| config.include RackClient }
