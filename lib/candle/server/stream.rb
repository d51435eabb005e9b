# frozen_string_literal: true

require "json"

module Candle
  class Server
    # The body of an answer that comes piece by piece. Rack calls {#each} to write it and {#close} in any case, which
    # ends work that is not needed any more.
    #
    # @api private
    class Stream
      # @param data [String, Hash] data of an event
      # @param event [String, nil] its name
      # @return [String] an event of `text/event-stream`
      def self.event(data, event: nil)
        data = JSON.generate(data) unless data.is_a?(String)
        "#{"event: #{event}\n" if event}data: #{data}\n\n"
      end

      # @param value [Hash]
      # @return [String] a line of NDJSON
      def self.line(value)
        "#{JSON.generate(value)}\n"
      end

      # @param job [Job] emits Strings
      # @param connection [Connection]
      # @param failure [Proc] makes the last piece of a {Problem}
      # @param leave [Proc] gives the place in the gate back
      def initialize(job, connection, failure:, leave:)
        @job = job
        @connection = connection
        @failure = failure
        @leave = leave
        @state = :unread
      end

      # @yieldparam error [Exception, nil] why the answer ended before its end
      # @return [void]
      def on_end(&block)
        @on_end = block
      end

      # @yieldparam piece [String]
      # @return [void]
      def each(&block)
        @connection.immediate
        @state = :broken
        error = failure_of { @job.each(&block) }
        yield @failure.call(error) if error
        @state = error || :whole
      rescue Job::Gone
        nil
      end

      # @return [void]
      def close
        leave = @leave or return
        @leave = nil
        begin
          @job.cancel
        ensure
          leave.call
        end
        @on_end&.call(ending)
      end

      private

      # What the work raised, as opposed to what writing raises.
      def failure_of
        yield
        nil
      rescue Job::Failed => e
        Problem.for(e.cause)
      rescue Problem => e
        e
      end

      def ending
        case @state
        when :whole then nil
        when Problem then @state
        else Job::Gone.new
        end
      end
    end
  end
end
