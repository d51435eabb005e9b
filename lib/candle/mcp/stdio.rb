# frozen_string_literal: true

require "json"

module Candle
  module MCP
    # A server that is a child process: one message per line, by its standard input and output.
    #
    # One thread per server reads, writes and in the end waits for the process. Callers only queue a message and wait
    # for its answer, so that an interrupt leaves no half-written line.
    #
    # @api private
    class Stdio
      # Seconds that a process gets to end by itself, and then after SIGTERM.
      GRACE = 2
      # Bytes that are read at once, and bytes that are kept of what the server wrote to its standard error.
      CHUNK = 65_536
      ERRORS = 2000
      private_constant :GRACE, :CHUNK, :ERRORS

      @open = {}.compare_by_identity
      @open_lock = Mutex.new

      class << self
        # Servers in a process group of their own do not get Ctrl-C, and may outlive the program unless it ends them.
        #
        # @param transport [Stdio]
        # @return [void]
        def opened(transport)
          @open_lock.synchronize do
            at_exit { close_all } unless @at_exit
            @at_exit = true
            @open[transport] = Process.pid
          end
        end

        # @param transport [Stdio]
        # @return [void]
        def closed(transport)
          @open_lock.synchronize { @open.delete(transport) }
        end

        private

        def close_all
          mine = @open_lock.synchronize { @open.select { |_, pid| pid == Process.pid }.keys }
          mine.each(&:begin_close).each(&:close)
        end
      end

      # @return [String] what to call the server in an error
      attr_reader :name
      # @return [Integer] the process
      attr_reader :pid

      # @param command [Array<String>]
      # @param env [Hash{String => String, nil}]
      # @param limit [Integer] bytes of a message
      # @param answer [#call] takes a server's request and gives its answer
      # @raise [MCPError] when the program can't be started
      def initialize(command, env:, limit:, answer:)
        @name = "the MCP server #{File.basename(command.first)}"
        @limit = limit
        @answer = answer
        @lock = Mutex.new
        @arrived = ConditionVariable.new
        @answers = {}
        @outgoing = String.new(encoding: Encoding::BINARY)
        @line = String.new(encoding: Encoding::BINARY)
        @last_errors = String.new(encoding: Encoding::BINARY)
        @owner = Process.pid
        start(command, env)
      end

      # @return [nil] there are sessions only over HTTP
      def session = nil

      # @return [void]
      def begin_session; end

      # @param version [String]
      # @return [String] the same: lines don't depend on it
      def protocol_version=(version)
        version
      end

      # @param message [Hash]
      # @param deadline [Float]
      # @return [Hash] the answer
      # @raise [MCPError]
      # @raise [MCPTimeoutError]
      def request(message, deadline)
        id = message["id"]
        line = written(message)
        @lock.synchronize do
          @answers[id] = nil
          enqueue(line)
          wait_for(id, deadline, message["method"])
        ensure
          @answers.delete(id)
        end
      end

      # @param message [Hash]
      # @return [void]
      # @raise [MCPError]
      def notify(message, _deadline = nil)
        line = written(message)
        @lock.synchronize { enqueue(line) }
      end

      # @param message [Hash] a notification that needs nobody to receive it
      # @return [void]
      def cancel(message)
        notify(message)
      rescue MCPError
        nil
      end

      # Says that nothing more will be sent, without waiting for the end.
      #
      # @return [self]
      def begin_close
        @lock.synchronize { fail_with("the client was closed") } if mine?
        self
      end

      # @return [void]
      def close
        return unless mine?

        begin_close
        @pump.join
      end

      # @return [Boolean]
      def closed?
        !mine? || !@failure.nil?
      end

      private

      # After a fork the thread and the process are the parent's.
      def mine?
        @owner == Process.pid
      end

      def start(command, env)
        child_input, @input = IO.pipe(binmode: true)
        @output, child_output = IO.pipe(binmode: true)
        @errors, child_errors = IO.pipe(binmode: true)
        @woken, @wake = IO.pipe(binmode: true)
        @pid = spawn(command, env, in: child_input, out: child_output, err: child_errors, pgroup: true)
        @process = Thread.new { wait_for_end }
        @pump = Thread.new { pump }
        self.class.opened(self)
      ensure
        [child_input, child_output, child_errors].compact.each(&:close)
        [@input, @output, @errors, @woken, @wake].compact.each(&:close) unless @pid
      end

      def spawn(command, env, **streams)
        # The pair keeps a command without arguments from being a shell's.
        Process.spawn(env, [command.first, command.first], *command.drop(1), **streams)
      rescue SystemCallError => e
        raise MCPError, "#{name} can't be started: #{e.message}"
      rescue TypeError
        raise ArgumentError, "env must be a Hash of Strings, not #{Arguments.shown(env)}"
      end

      def wait_for_end
        Process.wait2(@pid).last
      ensure
        poke
      end

      def written(message)
        line = "#{Arguments.json(message, "a message of MCP")}\n".b
        raise MCPError, "a message of #{line.bytesize} bytes is more than limit: #{@limit}" if line.bytesize > @limit

        line
      end

      def enqueue(line)
        raise MCPError, "#{name} belongs to the process that started it: open one after a fork" unless mine?
        raise MCPError, @failure if @failure
        raise MCPError, "#{name} does not read its input" if @outgoing.bytesize > @limit

        @outgoing << line
        poke
      end

      def wait_for(id, deadline, method)
        until @answers[id]
          raise MCPError, @failure if @failure

          left = deadline - Message.now
          raise MCPTimeoutError, "#{name} has not answered #{method} in time" if left <= 0

          @arrived.wait(@lock, left)
        end
        @answers[id]
      end

      def poke
        @wake.write_nonblock(".", exception: false)
      rescue IOError, SystemCallError
        nil
      end

      def fail_with(message)
        @failure ||= message
        @arrived.broadcast
        poke
      end

      def pump
        Thread.current.report_on_exception = false
        step until @lock.synchronize { @failure }
      rescue StandardError => e
        @lock.synchronize { fail_with(e.message) }
        # A process that still writes then ends by itself.
        @output.close
      ensure
        @lock.synchronize { fail_with("#{name} is not served any more") }
        end_process
        [@output, @errors, @woken, @wake].each(&:close)
        self.class.closed(self)
      end

      def step
        ended = !@process.alive?
        sending = @lock.synchronize { !@outgoing.empty? }
        readable, writable = IO.select([@output, @errors, @woken].reject(&:closed?), sending ? [@input] : nil, nil,
                                       ended ? 0 : nil)
        # What has ended may have written something before.
        raise MCPError, ended_message if ended && !readable&.include?(@output)

        send_some if writable&.any?
        readable&.each { |stream| read_some(stream) }
      end

      def send_some
        chunk = @lock.synchronize { @outgoing.byteslice(0, CHUNK) }
        count = @input.write_nonblock(chunk, exception: false)
        @lock.synchronize { @outgoing.slice!(0, count) } if count.is_a?(Integer)
      rescue Errno::EPIPE
        raise MCPError, ended_message
      end

      def read_some(stream)
        chunk = stream.read_nonblock(CHUNK, exception: false)
        case stream
        when @output then chunk.nil? ? raise(MCPError, ended_message) : take(chunk)
        when @errors then chunk.nil? ? stream.close : keep_errors(chunk)
        end
      end

      def take(chunk)
        return if chunk == :wait_readable

        chunk.each_line do |piece|
          @line << piece
          raise MCPError, "#{name} sent a message of more than limit: #{@limit} bytes" if @line.bytesize > @limit
          next unless piece.end_with?("\n")

          line = @line.strip
          @line.clear
          Message.received(line, name).each { |message| receive(message) } unless line.empty?
        end
      end

      def receive(message)
        return deliver(message) unless message.key?("method")

        notify(@answer.call(message)) if message.key?("id")
      end

      # Late answers find nobody waiting.
      def deliver(message)
        @lock.synchronize do
          next unless @answers.key?(message["id"])

          @answers[message["id"]] = message
          @arrived.broadcast
        end
      end

      def keep_errors(chunk)
        return if chunk == :wait_readable

        Candle.logger.debug { "#{name}: #{chunk.dup.force_encoding(Encoding::UTF_8).scrub.chomp}" }
        @last_errors = (@last_errors << chunk).byteslice(-ERRORS, ERRORS) || @last_errors
      end

      def ended_message
        @process.join(0.2)
        keep_last_errors
        status = @process.alive? ? "closed its output" : "has ended (#{@process.value.to_s.sub(/\Apid \d+ /, "")})"
        said = @last_errors.dup.force_encoding(Encoding::UTF_8).scrub.strip.lines.last
        "#{name} #{status}#{": #{said}" if said}"
      end

      def keep_last_errors
        chunk = @errors.read_nonblock(CHUNK, exception: false) unless @errors.closed?
        keep_errors(chunk) if chunk
      end

      def end_process
        @input.close
        return if @process.join(GRACE)

        signal("TERM")
        return if @process.join(GRACE)

        signal("KILL")
        @process.join
      end

      # The whole group: what the program started would live on otherwise.
      def signal(name)
        Process.kill(name, -@pid)
      rescue Errno::ESRCH, Errno::EPERM
        nil
      end
    end
  end
end
