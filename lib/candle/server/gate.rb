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
        @change = ConditionVariable.new
      end

      # Takes a place, and waits for it if need be.
      #
      # @param connection [Connection]
      # @param deadline [Float] on the monotonic clock
      # @return [Proc] gives the place back; calling it again does nothing
      # @raise [Problem] 429 when too many wait already, 504 after the deadline, 503 when the server shuts down
      # @raise [Job::Gone] when the client left
      def enter(connection, deadline)
        @mutex.synchronize do
          raise Problem.new(503, "shutting_down", "the server shuts down") if @closed
          raise refusal if @running + @queue.size >= @capacity + @room

          wait_in_line(connection, deadline)
          @running += 1
        end
        leaver
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

      def wait_in_line(connection, deadline)
        ticket = Object.new
        @queue.push(ticket)
        until @running < @capacity && @queue.first.equal?(ticket)
          @change.wait(@mutex, GLANCE)
          raise Job::Gone if connection.gone?
          raise Job.timed_out if Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
        end
      ensure
        @queue.delete(ticket)
        @change.broadcast
      end

      def leaver
        left = false
        lambda do
          @mutex.synchronize do
            @running -= 1 unless left
            left = true
            @change.broadcast
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
