# frozen_string_literal: true

module Candle
  # The Model Context Protocol: {MCP::Client} uses the tools of other programs, {MCP::Server} offers tools to them.
  #
  # @see https://modelcontextprotocol.io/specification
  module MCP
    # Versions of the protocol that client and server know, newest first. All of them begin with `initialize`.
    VERSIONS = %w[2025-11-25 2025-06-18 2025-03-26 2024-11-05].freeze
    # Those in which a message may be an array of messages.
    BATCH_VERSIONS = %w[2025-03-26 2024-11-05].freeze
    # The greatest message that is read or written, in bytes.
    LIMIT = 32 * 1024 * 1024

    # Codes of JSON-RPC.
    CODES = { parse: -32_700, invalid: -32_600, unknown: -32_601, parameters: -32_602, internal: -32_603 }.freeze
    private_constant :BATCH_VERSIONS, :CODES

    autoload :Client, "candle/mcp/client"
    autoload :Content, "candle/mcp/content"
    autoload :EventStream, "candle/mcp/event_stream"
    autoload :Http, "candle/mcp/http"
    autoload :Message, "candle/mcp/message"
    autoload :Server, "candle/mcp/server"
    autoload :Stdio, "candle/mcp/stdio"
  end
end
