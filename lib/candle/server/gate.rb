# frozen_string_literal: true

module Candle
  class Server
    # Lets so many requests compute, so many more wait in the order they came, and sends the others away.
    #
    # @api private
    class Gate
      # How often one that waits looks whether its client is still there, in seconds.
      GLANCE = 0.25
      private_constant :GLANCE

      # @param running [Integer]
      # @param waiting [Integer]
      def initialize(running:, waiting:)
        @capacity = running
        @room = waiting
        @running = 0
        @queue = []
        @closed = false
        @mutex = Mutex.new
      end

      # Takes a place for as long as the block runs, and waits for it if need be.
      #
      # @param connection [Connection]
      # @param deadline [Float] on the monotonic clock
      # @return [Object] what the block returns
      # @raise [Problem] 429 when too many wait already, 504 after the deadline, 503 when the server shuts down
      # @raise [Job::Gone] when the client left
      def hold(connection, deadline)
        pass(connection, deadline) do |leave|
          yield
        ensure
          leave.call
        end
      end

      # Takes a place that outlives the block, unless that raises. Exceptions of other threads, such as timeouts, come
      # through in the block and while waiting, and nowhere between: a place that nobody knows of would be lost.
      #
      # @yieldparam leave [Proc] gives the place back; calling it again does nothing
      # @return [Object] what the block returns
      # @raise [Problem, Job::Gone] as {#hold} does
      def pass(connection, deadline)
        Thread.handle_interrupt(Object => :never) do
          leave = Thread.handle_interrupt(Object => :on_blocking) { enter(connection, deadline) }
          begin
            result = Thread.handle_interrupt(Object => :immediate) { yield leave }
            kept = true
            result
          ensure
            leave.call unless kept
          end
        end
      end

      # @return [Integer] requests that compute
      def running
        @mutex.synchronize { @running }
      end

      # @return [Integer] requests that wait
      def waiting
        @mutex.synchronize { @queue.size }
      end

      # Sends everyone away that comes from now on.
      #
      # @return [void]
      def close
        @mutex.synchronize { @closed = true }
      end

      # @return [Boolean]
      def closed?
        @mutex.synchronize { @closed }
      end

      private

      def enter(connection, deadline)
        @mutex.synchronize do
          raise Problem.new(503, "shutting_down", "the server shuts down") if @closed
          raise refusal if @running + @queue.size >= @capacity + @room

          wait_in_line(connection, deadline)
          @running += 1
        end
        leaver
      end

      # Each one that waits is woken alone: where all were, a crowd would do nothing but look whose turn it is.
      def wait_in_line(connection, deadline)
        turn = ConditionVariable.new
        @queue.push(turn)
        until @running < @capacity && @queue.first.equal?(turn)
          turn.wait(@mutex, GLANCE)
          raise Job::Gone if connection.gone?
          raise Job.timed_out if Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
        end
      ensure
        @queue.delete(turn)
        # The next one may go on too, or this one leaves without having gone.
        @queue.first&.signal
      end

      def leaver
        left = false
        lambda do
          @mutex.synchronize do
            @running -= 1 unless left
            left = true
            @queue.first&.signal
          end
        end
      end

      def refusal
        seconds = [@queue.size / @capacity, 1].max
        Problem.new(429, "overloaded", "the server has as many requests as it takes: try again in #{seconds} s",
                    headers: { "retry-after" => seconds.to_s })
      end
    end
  end
end
