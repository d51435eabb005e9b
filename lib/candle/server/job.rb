# frozen_string_literal: true

module Candle
  class Server
    # Work for one request in a thread of its own, so that the request's thread can watch the client meanwhile: when
    # that goes away or the time is up, the work is ended, also in the middle of a native call.
    #
    # @api private
    class Job
      # The client went away; nobody is left to be told.
      class Gone < StandardError; end

      # The work raised; its error is the cause.
      class Failed < StandardError; end

      # How often the client is looked at while nothing comes, in seconds.
      GLANCE = 0.05
      # How far the work may run ahead of a slow reader.
      AHEAD = 64
      private_constant :GLANCE, :AHEAD

      # @return [Problem] what a request is told whose time is up
      def self.timed_out
        Problem.new(504, "timeout", "the request took longer than the server allows")
      end

      # @param connection [Connection]
      # @param deadline [Float] on the monotonic clock
      # @yieldparam emit [Proc] hands one value to {#each}
      # @yieldreturn [Object] what {#value} returns
      def initialize(connection, deadline, &work)
        @connection = connection
        @deadline = deadline
        @values = []
        @mutex = Mutex.new
        @change = ConditionVariable.new
        @thread = Thread.new { perform(work) }
        @thread.report_on_exception = false
      end

      # Waits until there is something to read, or all is done.
      #
      # @return [self]
      # @raise [StandardError] what the work raised, if it did before it emitted anything
      def started
        pause { @values.any? || @done }
        raise @error if @error && @values.empty?

        self
      end

      # @yieldparam value [Object] each one emitted
      # @return [Object] what the work returned
      # @raise [Failed] when the work raised
      def each
        loop do
          value = take
          break if value.equal?(self)

          yield value
        end
        raise Failed, cause: @error if @error

        @result
      end

      # @return [Object] what the work returned, once it is done
      # @raise [StandardError] what it raised
      def value
        each {}
      rescue Failed => e
        raise e.cause
      end

      # Ends the work, and waits until it has ended.
      #
      # @return [void]
      def cancel
        return unless @thread.alive?

        @thread.kill
        @thread.join
      end

      private

      def perform(work)
        result = work.call(method(:emit))
        @mutex.synchronize { @result = result }
      rescue Exception => e # rubocop:disable Lint/RescueException -- the request's thread raises it
        @mutex.synchronize { @error = e }
      ensure
        @mutex.synchronize do
          @done = true
          @change.broadcast
        end
      end

      def emit(value)
        @mutex.synchronize do
          @change.wait(@mutex) while @values.size >= AHEAD
          @values.push(value)
          @change.broadcast
        end
      end

      # @return [Object] the next value; the job itself when there are no more
      def take
        watch
        pause { @values.any? || @done }
        @mutex.synchronize do
          @change.broadcast
          @values.empty? ? self : @values.shift
        end
      end

      def pause
        loop do
          ready = @mutex.synchronize { yield || (@change.wait(@mutex, GLANCE) && yield) }
          return if ready

          watch
        end
      end

      def watch
        stop(Gone.new) if @connection.gone?
        stop(self.class.timed_out) if Process.clock_gettime(Process::CLOCK_MONOTONIC) > @deadline
      end

      def stop(error)
        cancel
        raise error
      end
    end
  end
end
