# frozen_string_literal: true

module Candle
  module MCP
    # Uses the tools of an MCP server: of a program that it starts ({.stdio}), or of one that is reached by HTTP
    # ({.http}). Any number of threads may use one client.
    #
    # Every wait ends after `timeout:` seconds at the latest, and `Thread#raise`, `Timeout` and Ctrl-C end it at once.
    # A server that ends, that sends something else than the protocol or more than `limit:` bytes at once raises
    # {MCPError}, and its process is ended.
    #
    # @example
    #   Candle::MCP::Client.stdio("ruby", "spec/fixtures/mcp/server.rb") do |client|
    #     client.tools.map(&:name) # => ["add", "echo", "fail"]
    #     client.call_tool("echo", { "text" => "hello" }) # => "hello"
    #   end
    class Client
      # Seconds that a call waits for its answer.
      TIMEOUT = 30
      # Pages of a list of tools.
      PAGES = 1000
      private_constant :PAGES

      class << self
        # Starts a program and speaks with it by its standard input and output. The program is not run by a shell.
        #
        # @param command [String] the program
        # @param arguments [Array<String>]
        # @param env [Hash{String => String, nil}] variables to set, or to remove with nil, for the program
        # @param timeout [Numeric] seconds that a call may take, the start included
        # @param limit [Integer] bytes that a message may have
        # @yieldparam client [Client] which is closed after the block
        # @return [Client, Object] the client, or what the block returns
        # @raise [MCPError] when the program can't be started, or isn't a server of this protocol
        # @raise [MCPTimeoutError] when it does not answer in time
        def stdio(command, *arguments, env: {}, timeout: TIMEOUT, limit: LIMIT, &block)
          words = [command, *arguments].map { |word| TextInput.path(word, "command") }
          limit = checked_limit(limit)
          opened(timeout, block) { |answer| Stdio.new(words, env: env, limit: limit, answer: answer) }
        end

        # Connects to a server by streamable HTTP.
        #
        # @param url [String, URI] of the server's endpoint, `http` or `https`
        # @param headers [Hash{String => String}] to send with every request, such as `"authorization"`
        # @param timeout [Numeric] seconds that a call may take
        # @param limit [Integer] bytes that a message may have
        # @yieldparam client [Client] which is closed after the block
        # @return [Client, Object] the client, or what the block returns
        # @raise [MCPError] when the server can't be reached, refuses, or isn't one of this protocol
        # @raise [MCPTimeoutError] when it does not answer in time
        def http(url, headers: {}, timeout: TIMEOUT, limit: LIMIT, &block)
          limit = checked_limit(limit)
          opened(timeout, block) { |answer| Http.new(url, headers: headers, limit: limit, answer: answer) }
        end

        private :new

        private

        def opened(timeout, block, &transport)
          client = new(timeout, &transport)
          return client unless block

          begin
            block.call(client)
          ensure
            client.close
          end
        end

        def checked_limit(limit)
          Arguments.count(limit, "limit") || raise(ArgumentError, "limit is missing")
        end
      end

      # @return [String] the version of the protocol that was agreed upon, one of {VERSIONS}
      attr_reader :protocol_version
      # @return [Hash] what the server says of itself: `"name"`, `"version"`
      attr_reader :server_info
      # @return [Hash] what the server can do
      attr_reader :capabilities
      # @return [String, nil] how the server's tools should be used, for a system prompt
      attr_reader :instructions

      # @param timeout [Numeric]
      # @yieldparam answer [Proc] takes a server's request and gives its answer
      # @yieldreturn [Stdio, Http] the transport
      def initialize(timeout)
        @timeout = checked_timeout(timeout)
        @lock = Mutex.new
        @handshake = Mutex.new
        @last_id = 0
        @transport = yield method(:answer)
        begin
          shake_hands(deadline(@timeout))
          ready = true
        ensure
          @transport.close unless ready
        end
      end

      # The server's tools, for an {Agent} or `chat_with_tools`. The server is asked on every call.
      #
      # @example
      #   Candle::MCP::Client.stdio("ruby", "spec/fixtures/mcp/server.rb") do |client|
      #     add = client.tools.find { |tool| tool.name == "add" }
      #     add.call("a" => 1, "b" => 2) # => {"sum"=>3}
      #   end
      #
      # @return [Array<Tool>] a name that {Tool} does not take has `_` in place of other characters
      # @raise [MCPError]
      # @raise [MCPTimeoutError]
      def tools
        names = {}
        definitions.map { |definition| tool(definition, names) }
      end

      # @param name [String, Symbol] as the server has it
      # @param arguments [Hash]
      # @param timeout [Numeric, nil] seconds; nil is the client's
      # @return [String, Hash] the structured content of the result, or its text
      # @raise [MCPToolError] when the tool failed, with its text
      # @raise [MCPError] when the server doesn't know the tool
      # @raise [MCPTimeoutError]
      def call_tool(name, arguments = {}, timeout: nil)
        result = request("tools/call", { "name" => name.to_s, "arguments" => arguments }, timeout: timeout)
        Content.read(result, name)
      end

      # Asks whether the server is there.
      #
      # @param timeout [Numeric, nil] seconds; nil is the client's
      # @return [true]
      # @raise [MCPError]
      # @raise [MCPTimeoutError]
      def ping(timeout: nil)
        request("ping", timeout: timeout)
        true
      end

      # Sends any request of the protocol.
      #
      # @param method [String] such as `"resources/list"`
      # @param params [Hash, nil]
      # @param timeout [Numeric, nil] seconds; nil is the client's
      # @return [Hash] the result
      # @raise [MCPError] when the server answers with an error; `code` is its code
      # @raise [MCPTimeoutError]
      def request(method, params = nil, timeout: nil)
        ask(method, params, deadline(timeout ? checked_timeout(timeout) : @timeout))
      end

      # Ends the session, and the process that {.stdio} started: its input is closed, and where it does not end by
      # itself it gets SIGTERM, then SIGKILL. Calls that wait raise {MCPError}.
      #
      # @return [nil]
      def close
        @transport.close
        nil
      end

      # @return [Boolean]
      def closed?
        @transport.closed?
      end

      # @return [String] one line
      def inspect
        "#<Candle::MCP::Client #{@transport.name}#{" closed" if closed?}>"
      end

      private

      def checked_timeout(timeout)
        return timeout if timeout.is_a?(Numeric) && timeout.real? && timeout.positive? && timeout.to_f.finite?

        raise ArgumentError, "timeout must be a positive number of seconds, not #{Arguments.shown(timeout)}"
      end

      def deadline(seconds)
        Message.now + seconds
      end

      # A server may forget a session; the protocol then wants a new one.
      def ask(method, params, deadline)
        exchange(method, params, deadline)
      rescue Http::SessionLost => e
        @handshake.synchronize { shake_hands(deadline) if @transport.session == e.session }
        exchange(method, params, deadline)
      end

      def exchange(method, params, deadline)
        id = @lock.synchronize { @last_id += 1 }
        answer = @transport.request(Message.call(id, method, params), deadline)
        result_of(answer, method)
      rescue MCPError => e
        failed = !e.is_a?(MCPTimeoutError)
        raise
      ensure
        # The server need not compute what nobody waits for.
        @transport.cancel(cancellation(id)) unless id.nil? || answer || failed || method == "initialize"
      end

      def cancellation(id)
        Message.call(nil, "notifications/cancelled", { "requestId" => id, "reason" => "nobody waits for it" })
      end

      def result_of(answer, method)
        error = answer["error"]
        if error
          raise MCPError.new("#{@transport.name} answers #{method} with an error: #{error["message"]}",
                             code: error["code"])
        end

        result = answer["result"]
        return result if result.is_a?(Hash)

        raise MCPError, "#{@transport.name} answers #{method} with #{Arguments.shown(result)} instead of an object"
      end

      def shake_hands(deadline)
        @transport.begin_session
        found = exchange("initialize", { "protocolVersion" => VERSIONS.first, "capabilities" => {},
                                         "clientInfo" => { "name" => "red-candle", "version" => VERSION } }, deadline)
        version = found["protocolVersion"]
        unless VERSIONS.include?(version)
          raise MCPError, "#{@transport.name} speaks version #{Arguments.shown(version)} of the protocol; this " \
                          "client knows #{VERSIONS.join(", ")}"
        end

        @protocol_version = @transport.protocol_version = version
        @server_info, @capabilities = %w[serverInfo capabilities].map { |key| Hash.try_convert(found[key]) || {} }
        @instructions = String.try_convert(found["instructions"])
        @transport.notify(Message.call(nil, "notifications/initialized", nil), deadline)
      end

      # The client offers nothing: a server can only ask whether it is there.
      def answer(request)
        return Message.result(request["id"], {}) if request["method"] == "ping"

        Message.error(request["id"], :unknown, "unknown method #{request["method"]}")
      end

      def definitions
        ends = deadline(@timeout)
        found = []
        cursors = []
        while cursors.size < PAGES
          page = ask("tools/list", cursors.last && { "cursor" => cursors.last }, ends)
          found.concat(checked_page(page))
          cursor = page["nextCursor"] or return found
          raise MCPError, "#{@transport.name} lists its tools in a circle" if cursors.include?(cursor)

          cursors << cursor
        end
        raise MCPError, "#{@transport.name} lists more than #{PAGES} pages of tools"
      end

      def checked_page(page)
        tools = page["tools"]
        return tools if tools.is_a?(Array) && tools.all? { |tool| tool.is_a?(Hash) && tool["name"].is_a?(String) }

        raise MCPError, "#{@transport.name} lists invalid tools: #{Arguments.shown(tools)}"
      end

      def tool(definition, names)
        original = definition["name"]
        schema = definition["inputSchema"]
        Tool.new(name: fitting(original, names), description: definition["description"].to_s,
                 parameters: schema.is_a?(Hash) ? schema : {}) do |arguments|
          call_tool(original, arguments.to_h)
        end
      end

      def fitting(original, names)
        name = original.gsub(/[^a-zA-Z0-9_.-]/, "_")[0, 64]
        name = "tool" if name.empty?
        number = 1
        fit = name
        fit = "#{name[0, 60]}_#{number += 1}" while names.key?(fit)
        names[fit] = true
        fit
      end
    end
  end
end
