# frozen_string_literal: true

require "json"

module Candle
  module MCP
    # Messages of JSON-RPC 2.0.
    #
    # @api private
    module Message
      module_function

      # @param id [Integer, nil] nil makes a notification
      # @param method [String]
      # @param params [Hash, nil]
      # @return [Hash]
      def call(id, method, params)
        { "jsonrpc" => "2.0", "id" => id, "method" => method, "params" => params }.compact
      end

      # @param id [Integer, String]
      # @param result [Hash]
      # @return [Hash]
      def result(id, result)
        { "jsonrpc" => "2.0", "id" => id, "result" => result }
      end

      # @param id [Integer, String, nil]
      # @param code [Symbol] a key of {CODES}
      # @param message [String]
      # @return [Hash]
      def error(id, code, message)
        { "jsonrpc" => "2.0", "id" => id, "error" => { "code" => CODES.fetch(code), "message" => message } }
      end

      # @param text [String]
      # @return [Object] the value
      # @raise [JSON::ParserError] for anything but JSON in UTF-8
      def parse(text)
        text = text.dup.force_encoding(Encoding::UTF_8)
        raise JSON::ParserError, "not UTF-8" unless text.valid_encoding?

        JSON.parse(text)
      end

      # What a server sent.
      #
      # @param text [String]
      # @param server [String] what to call it in an error
      # @return [Array<Hash>] requests, notifications and answers
      # @raise [MCPError] for anything else
      def received(text, server)
        value = parse(text)
        messages = value.is_a?(Array) ? value : [value]
        return messages if messages.all? { |message| message?(message) }

        raise MCPError, "#{server} sent an invalid JSON-RPC 2.0 message: #{start(text)}"
      rescue JSON::ParserError
        raise MCPError, "#{server} sent invalid JSON: #{start(text)}"
      end

      # @param message [Object]
      # @return [Boolean] whether it is a request, a notification or an answer
      def message?(message)
        return false unless message.is_a?(Hash) && message["jsonrpc"] == "2.0"
        return true if message["method"].is_a?(String)

        message.key?("id") && (message.key?("result") || message["error"].is_a?(Hash))
      end

      # @return [Float] seconds of a clock that only goes forward
      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end

      def start(text)
        text.byteslice(0, 80).force_encoding(Encoding::UTF_8).scrub.inspect
      end
      private_class_method :start
    end
  end
end
