# frozen_string_literal: true

module Candle
  module MCP
    # Offers tools to MCP clients over standard input and output, as `red-candle mcp` does.
    #
    # A call of a tool runs in a thread of its own: other requests are answered meanwhile, and a call that the client
    # cancels is ended. What a tool raises is the result of the call, for the model to read.
    #
    # @example
    #   require "stringio"
    #   clock = Candle::Tool.new(name: "clock", description: "Tells the time") { "noon" }
    #   output = StringIO.new
    #   request = '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "clock"}}'
    #   Candle::MCP::Server.new(tools: [clock]).run(StringIO.new(request), output)
    #   output.string.include?("noon") # => true
    class Server
      # Calls that run at the same time.
      RUNNING = 16
      private_constant :RUNNING

      # What a request is refused with.
      Refusal = Class.new(StandardError) do
        attr_reader :code

        def initialize(code, message)
          super(message)
          @code = code
        end
      end
      private_constant :Refusal

      # @return [Array<Tool>]
      attr_reader :tools

      # @param tools [Array<Tool>] each with a block to call
      # @param name [String] what the server calls itself
      # @param version [String]
      # @param instructions [String, nil] how the tools should be used, for the model
      # @raise [ArgumentError] for what isn't a tool, or a tool without a block
      def initialize(tools:, name: "red-candle", version: VERSION, instructions: nil)
        @tools = Tool.all(tools)
        idle = @tools.find { |tool| tool.respond_to?(:callable?) && !tool.callable? }
        raise ArgumentError, "the tool #{idle.name} has no block to call: give Tool.new one" if idle

        @info = { "name" => name, "version" => version }
        @instructions = instructions
        @writing = Mutex.new
        @lock = Mutex.new
        @running = {}
      end

      # Serves one client until it closes the input, then finishes the calls that still run. Only messages of the
      # protocol are written to the output.
      #
      # @param input [IO]
      # @param output [IO]
      # @return [nil]
      def run(input = $stdin, output = $stdout)
        @output = output
        @protocol_version = nil
        while (line = input.gets("\n", LIMIT))
          whole = line.end_with?("\n") || line.bytesize < LIMIT
          whole ? receive(line.b.strip) : refuse_long(input)
        end
        running.each(&:join)
        nil
      ensure
        running.each(&:kill).each(&:join)
      end

      private

      def running
        @lock.synchronize { @running.values }
      end

      def refuse_long(input)
        nil while (rest = input.gets("\n", LIMIT)) && !rest.end_with?("\n")
        write(Message.error(nil, :invalid, "a message may have #{LIMIT} bytes"))
      end

      def receive(line)
        return if line.empty?

        message = Message.parse(line)
        message.is_a?(Array) ? receive_batch(message) : receive_one(message)
      rescue JSON::ParserError
        write(Message.error(nil, :parse, "not JSON in UTF-8"))
      end

      # Requests that take long run beside others.
      def receive_one(message)
        return write(answer(message)) unless message.is_a?(Hash) && message["method"] == "tools/call" && id?(message)

        start(message["id"]) { answer(message) }
      end

      # Versions since 2025-06-18 have no batches.
      def receive_batch(messages)
        unless BATCH_VERSIONS.include?(@protocol_version) && messages.any?
          return write(Message.error(nil, :invalid, messages.empty? ? "an empty batch" : "batches are not supported"))
        end

        start(messages.object_id) do
          answers = messages.filter_map { |message| answer(message, batch: true) }
          answers unless answers.empty?
        end
      end

      def start(key, &work)
        @lock.synchronize do
          problem = "the id #{key.inspect} is in use" if @running.key?(key)
          problem ||= "#{RUNNING} calls are running: wait for one of them" if @running.size >= RUNNING
          next @running[key] = Thread.new { perform(key, &work) } unless problem

          write(Message.error(key, :invalid, problem))
        end
      end

      # A call that is cancelled has no answer, and never half of one.
      def perform(key, &work)
        Thread.current.report_on_exception = false
        Thread.handle_interrupt(Object => :never) do
          write(Thread.handle_interrupt(Object => :immediate, &work))
        end
      ensure
        @lock.synchronize { @running.delete(key) if @running[key] == Thread.current }
      end

      def answer(message, batch: false)
        return if Message.message?(message) && !message.key?("method")

        id = message["id"] if id?(message)
        problem = problem_of(message, batch)
        return Message.error(id, :invalid, problem) if problem
        return notified(message) unless message.key?("id")

        Message.result(id, result(message["method"], message["params"] || {}))
      rescue Refusal => e
        Message.error(id, e.code, e.message)
      end

      def id?(message)
        message.is_a?(Hash) && [String, Integer].any? { |type| message["id"].is_a?(type) }
      end

      def problem_of(message, batch)
        return "not a request of JSON-RPC 2.0" unless Message.message?(message)
        return "an id must be a String or an Integer" if message.key?("id") && !id?(message)
        return "params must be an object" unless message["params"].nil? || message["params"].is_a?(Hash)

        "initialize can't be part of a batch" if batch && message["method"] == "initialize"
      end

      def notified(message)
        return unless message["method"] == "notifications/cancelled"

        key = message.dig("params", "requestId")
        @lock.synchronize { @running.delete(key) }&.kill
        nil
      end

      def result(method, params)
        case method
        when "initialize" then initialized(params)
        when "ping" then {}
        when "tools/list" then list(params)
        when "tools/call" then call(params)
        else raise Refusal.new(:unknown, "unknown method #{method}")
        end
      end

      def initialized(params)
        wanted = params["protocolVersion"]
        @protocol_version = VERSIONS.include?(wanted) ? wanted : VERSIONS.first
        { "protocolVersion" => @protocol_version, "capabilities" => { "tools" => { "listChanged" => false } },
          "serverInfo" => @info, "instructions" => @instructions }.compact
      end

      def list(params)
        raise Refusal.new(:parameters, "unknown cursor #{params["cursor"]}") if params["cursor"]

        { "tools" => tools.map { |tool| definition(tool) } }
      end

      def definition(tool)
        { "name" => tool.name, "description" => tool.description,
          "inputSchema" => { "type" => "object" }.merge(tool.parameters.transform_keys(&:to_s)) }
      end

      def call(params)
        tool = tools.find { |known| known.name == params["name"] }
        raise Refusal.new(:parameters, "unknown tool #{params["name"]}") unless tool

        Content.write(tool.execute(params["arguments"] || {}))
      rescue Refusal
        raise
      rescue StandardError, SystemStackError, NoMemoryError => e
        Candle.logger.warn("the tool #{tool.name} failed: #{e.message} (#{e.class})")
        Content.failure(e.message.scrub)
      end

      def write(message)
        return if message.nil?

        line = "#{JSON.generate(message)}\n"
        @writing.synchronize do
          @output.write(line)
          @output.flush
        end
      rescue Errno::EPIPE, IOError
        # The client is gone, and the input ends too.
        nil
      end
    end
  end
end
