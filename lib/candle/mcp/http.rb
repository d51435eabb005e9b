# frozen_string_literal: true

require "json"
require "net/http"
require "timeout"
require "uri"

module Candle
  module MCP
    # A server that is reached by streamable HTTP: every message is a POST, whose answer is JSON or a stream of events.
    # Each has a connection of its own, so that threads need not wait for each other.
    #
    # @api private
    class Http
      # The server has forgotten the session.
      class SessionLost < MCPError
        # @return [String] the session's id
        attr_reader :session

        # @param message [String]
        # @param session [String]
        def initialize(message, session)
          super(message)
          @session = session
        end
      end

      # Raised where the deadline passes; an outer `Timeout` stays what it is.
      Expired = Class.new(StandardError)
      # Seconds for messages that nobody waits for.
      PARTING = 2
      # Bytes of a refusal that are shown.
      SHOWN = 300
      FAILURES = [SystemCallError, IOError, SocketError, OpenSSL::SSL::SSLError, Net::ProtocolError,
                  Net::HTTPBadResponse, Net::HTTPHeaderSyntaxError].freeze
      private_constant :Expired, :PARTING, :SHOWN, :FAILURES

      # @return [String] what to call the server in an error
      attr_reader :name
      # @return [String, nil] the id of the session
      attr_reader :session
      # @param version [String] which further requests name
      attr_writer :protocol_version

      # @param url [String, URI]
      # @param headers [Hash{String => String}]
      # @param limit [Integer] bytes of a message
      # @param answer [#call] takes a server's request and gives its answer
      # @raise [ArgumentError] for another URL
      def initialize(url, headers:, limit:, answer:)
        @uri = checked(url)
        @name = "the MCP server #{@uri.host}:#{@uri.port}"
        @headers = headers.to_h { |key, value| [key.to_s.downcase, value.to_s] }
        @limit = limit
        @answer = answer
        @closed = false
      end

      # @return [void]
      def begin_session
        @session = nil
        @protocol_version = nil
      end

      # @param message [Hash]
      # @param deadline [Float]
      # @return [Hash] the answer
      # @raise [MCPError]
      # @raise [MCPTimeoutError]
      def request(message, deadline)
        check_open
        post(message, deadline) do |response|
          remember_session(response) if message["method"] == "initialize"
          each_message(response) do |found|
            return found if !found.key?("method") && found["id"] == message["id"]

            # What the server asks meanwhile must be answered, or it may never go on.
            notify(@answer.call(found), deadline) if found.key?("method") && found.key?("id")
          end
        end
        raise MCPError, "#{name} has not answered #{message["method"]}"
      end

      # @param message [Hash]
      # @param deadline [Float]
      # @return [void]
      # @raise [MCPError]
      def notify(message, deadline)
        check_open
        post(message, deadline) { return }
      end

      # @param message [Hash] a notification that needs nobody to receive it
      # @return [void]
      def cancel(message)
        in_background { notify(message, Message.now + PARTING) } unless closed?
      end

      # Ends the session. A server without sessions, or one that keeps them, needs no answer.
      #
      # @return [void]
      def close
        return if @closed

        @closed = true
        return unless @session

        within(Message.now + PARTING, "DELETE") { |http| http.request(prepared(Net::HTTP::Delete)) }
      rescue MCPError
        nil
      end

      # @return [Boolean]
      def closed?
        @closed
      end

      private

      def checked(url)
        uri = URI.parse(url.to_s)
        return uri if uri.is_a?(URI::HTTP) && uri.host && !uri.host.empty?

        raise ArgumentError, "url must be an http or https URL, not #{Arguments.shown(url)}"
      rescue URI::InvalidURIError
        raise ArgumentError, "url must be an http or https URL, not #{Arguments.shown(url)}"
      end

      def check_open
        raise MCPError, "the client was closed" if @closed
      end

      def in_background
        Thread.new do
          Thread.current.report_on_exception = false
          yield
        rescue MCPError
          nil
        end
      end

      def post(message, deadline, &block)
        request = prepared(Net::HTTP::Post)
        request["content-type"] = "application/json"
        request.body = Arguments.json(message, "a message of MCP")
        if request.body.bytesize > @limit
          raise MCPError, "a message of #{request.body.bytesize} bytes is more than limit: #{@limit}"
        end

        within(deadline, message["method"] || "an answer") do |http|
          http.request(request) { |response| block.call(accepted(response)) }
        end
      end

      def prepared(verb)
        given = { "accept" => "application/json, text/event-stream", "accept-encoding" => "identity",
                  "mcp-session-id" => @session, "mcp-protocol-version" => @protocol_version }.compact
        verb.new(@uri, @headers.merge(given))
      end

      # The deadline is that of the whole exchange, however slowly the server sends.
      def within(deadline, what, &block)
        left = deadline - Message.now
        raise Expired if left <= 0

        Timeout.timeout(left, Expired) do
          options = { use_ssl: @uri.scheme == "https", open_timeout: left, read_timeout: left, write_timeout: left,
                      max_retries: 0 }
          Net::HTTP.start(@uri.hostname, @uri.port, **options, &block)
        end
      rescue Expired, Net::OpenTimeout, Net::ReadTimeout, Net::WriteTimeout
        raise MCPTimeoutError, "#{name} has not answered #{what} in time"
      rescue *FAILURES => e
        raise MCPError, "#{name} can't be reached: #{e.message}"
      end

      def accepted(response)
        return response if response.is_a?(Net::HTTPSuccess)
        raise SessionLost.new("#{name} has ended the session", @session) if response.code == "404" && @session

        text = refusal(response)
        raise MCPError, "#{name} refuses with status #{response.code}#{": #{text}" unless text.empty?}"
      end

      def refusal(response)
        text = String.new(encoding: Encoding::BINARY)
        response.read_body do |chunk|
          text << chunk
          break if text.bytesize > SHOWN
        end
        text.byteslice(0, SHOWN).force_encoding(Encoding::UTF_8).scrub.strip.tr("\n", " ")
      end

      def remember_session(response)
        id = response["mcp-session-id"] or return
        raise MCPError, "#{name} sent an invalid session id" unless id.match?(/\A[\x21-\x7e]+\z/)

        @session = id
      end

      def each_message(response, &block)
        case response.content_type
        when "application/json" then Message.received(body(response), name).each(&block)
        when "text/event-stream" then each_event(response, &block)
        else
          raise MCPError, "#{name} answers with #{response.content_type || "no content"} instead of JSON or events"
        end
      end

      def body(response)
        text = String.new(encoding: Encoding::BINARY)
        response.read_body do |chunk|
          text << chunk
          raise MCPError, "#{name} sent a message of more than limit: #{@limit} bytes" if text.bytesize > @limit
        end
        text
      end

      def each_event(response, &block)
        events = EventStream.new(@limit, name)
        response.read_body do |chunk|
          events.feed(chunk) { |data| Message.received(data, name).each(&block) }
        end
      end
    end
  end
end
