# frozen_string_literal: true

module Candle
  class Server
    # Batches of requests that are computed in the background, one batch after the other. A batch is a record of
    # {Storage}; the process that computes it holds a lock on a file beside it, so that another one goes on with it
    # after a crash.
    #
    # @api private
    class Batches
      # What batches are that come to an end by themselves.
      OPEN = %w[validating in_progress finalizing cancelling].freeze
      # How many that are over are kept.
      KEPT = 1000
      # How often the folder is looked at for work, in seconds.
      GLANCE = 1.0
      private_constant :OPEN, :KEPT, :GLANCE

      # @param batch [Hash] a record
      # @return [Boolean] whether it is not over
      def self.open?(batch)
        OPEN.include?(batch[:status])
      end

      # @param services [API::Services]
      # @param router [Router]
      def initialize(services, router)
        @services = services
        @router = router
        @mutex = Mutex.new
      end

      # Computes what is there to compute, in a thread of this process.
      #
      # @return [void]
      def attend
        @mutex.synchronize do
          next if (@thread&.alive? && @process == Process.pid) || !work? || gate.closed?

          @process = Process.pid
          @thread = Thread.new { compute_all }
          @thread.name = "candle batches"
          @thread.report_on_exception = false
        end
      end

      # Computes what an earlier process left, where there can be such.
      #
      # @return [void]
      def resume
        return if @looked == Process.pid || !storage.lasting?

        @looked = Process.pid
        attend
      end

      # @return [Array<Hash>] those that are not over, the oldest first
      def open
        storage.list("batches").select { |batch| self.class.open?(batch) }
      end

      # Forgets the oldest of those that are over.
      #
      # @return [void]
      def forget
        over = storage.list("batches").reject { |batch| self.class.open?(batch) }
        over.first([over.size - KEPT, 0].max).each { |batch| storage.delete("batches", batch[:id]) }
      end

      # @return [void]
      def close
        thread = @thread
        thread.join if thread && @process == Process.pid && !thread.equal?(Thread.current)
      end

      private

      def gate
        @services.gate
      end

      def storage
        @services.storage
      end

      def work?
        storage.used? && open.any?
      end

      # @return [Array(Integer, Hash)] the status and the body of the answer to a line
      # @raise [Problem] when it is to be asked again
      # @raise [Job::Gone] when it is not wanted any more
      def answer(request)
        route = @router.find("POST", request.path)
        if request.json["stream"]
          raise Problem.new(400, "invalid_request", "requests of a batch can't stream", param: "stream")
        end

        status, _, parts = route.action.call(request)
        [status, JSON.parse(parts.join)]
      rescue Job::Gone
        raise
      rescue *Problem::ANSWERED => e
        problem = Problem.for(e)
        raise problem if problem.status == 429 || gate.closed?

        [route.dialect.status(problem), route.dialect.error(problem)]
      end

      # Batches of other processes are waited for: one of those may end before its work does.
      def compute_all
        until done?
          computed = open.map { |batch| compute(batch[:id]) }
          sleep(GLANCE) if computed.none?
        end
      rescue StandardError => e
        Candle.logger.error { "batches: #{e.class}: #{e.message}" }
      end

      # A batch added after this finds no thread and starts another.
      def done?
        @mutex.synchronize do
          next false if work? && !gate.closed?

          @thread = nil
          true
        end
      end

      # @return [Boolean] whether this process had the batch
      def compute(id)
        File.open(storage.place("batches", id, "lock"), File::RDWR | File::CREAT) do |lock|
          next false unless lock.flock(File::LOCK_EX | File::LOCK_NB)

          batch = storage.read("batches", id)
          BatchRun.new(batch, @services, method(:answer)).call if batch && self.class.open?(batch)
          true
        end
      end
    end
  end
end
