# frozen_string_literal: true

require "json"
require "set"
require "stringio"

module Candle
  class Server
    # Computes a batch: checks its file, asks the server for every line of it, and writes what comes of them. Lines
    # whose results are written already are not computed again.
    #
    # @api private
    class BatchRun
      # How often the record is written while lines are computed, in seconds.
      NEWS = 0.5
      # How long a line waits that the gate sends away, in seconds.
      PAUSE = 0.2
      private_constant :NEWS, :PAUSE

      # Stands for the client of a line: it has gone once the batch is not wanted any more.
      Watch = Struct.new(:run) do
        def gone? = run.over?
        def left? = false
        def immediate; end
      end
      private_constant :Watch

      # @param batch [Hash] its record
      # @param services [API::Services]
      # @param answer [#call] takes a path and a {Request}
      def initialize(batch, services, answer)
        @batch = batch
        @services = services
        @answer = answer
        @mutex = Mutex.new
        @results = { completed: BatchResults.new(storage, batch[:id], "output"),
                     failed: BatchResults.new(storage, batch[:id], "errors") }
        @looked = 0
      end

      # @return [void]
      def call
        return finish("cancelled") if cancelled?

        input = checked_input or return
        begin_computing
        compute(input)
        conclude(input)
      rescue StandardError => e
        raise if gate.closed?

        Candle.logger.error { "batch #{@batch[:id]}: #{e.class}: #{e.message}" }
        fail_with([{ code: "internal_error", message: "the server failed; its log says why", line: nil, param: nil }])
      ensure
        @results.each_value(&:close)
      end

      # @return [Boolean] whether no further line is to be computed
      def over?
        @full || gate.closed? || expired? || cancelled?
      end

      private

      def storage
        @services.storage
      end

      def limits
        @services.limits
      end

      def gate
        @services.gate
      end

      def expired?
        Time.now.to_i >= @batch[:expires_at]
      end

      # Another process may have been asked to cancel it; the folder is not asked for every token.
      def cancelled?
        return true if @cancelled

        now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        return false if now - @looked < PAUSE

        @looked = now
        @cancelled = File.exist?(storage.place("batches", @batch[:id], "cancel"))
      end

      def checked_input
        file = storage.read("files", @batch[:input_file_id])
        unless file
          fail_with([{ code: "file_missing", message: "the input file is gone", line: nil, param: "input_file_id" }])
          return
        end

        input = BatchInput.new(storage.place("files", file[:id], "data"), @batch[:endpoint], limits)
        count, errors = input.check
        return fail_with(errors) && nil if errors.any?

        note(request_counts: { total: count, completed: 0, failed: 0 })
        input
      end

      def begin_computing
        @known = Set.new
        counts = @results.transform_values { |results| results.resume { |id| @known << id } }
        note(status: "in_progress", in_progress_at: @batch[:in_progress_at] || Time.now.to_i,
             request_counts: @batch[:request_counts].merge(counts))
      end

      # As many threads as leave half of the server to others; what they compute at the same time is one batch of the
      # model.
      def compute(input)
        lines = SizedQueue.new(2 * threads)
        workers = Array.new(threads) { Thread.new { work_off(lines) } }
        input.each do |line|
          break if over?

          lines.push(line) unless @known.include?(line.custom_id)
        end
      ensure
        lines&.close
        workers&.each(&:join)
      end

      def threads
        [limits.running / 2, 1].max
      end

      def work_off(lines)
        while (line = lines.pop)
          answer_line(line) unless over?
        end
      rescue StandardError => e
        Candle.logger.error { "batch #{@batch[:id]}: #{e.class}: #{e.message}" }
        @full = true
      end

      def answer_line(line)
        status, body = ask(line.body)
        response = { status_code: status, request_id: storage.name("req_"), body: body }
        keep(status == 200 ? :completed : :failed, line, response: response)
      rescue Job::Gone
        # It is not wanted any more: the end of the batch tells of it.
      end

      # @return [Array(Integer, Hash)] the status and the body
      def ask(body)
        env = { "REQUEST_METHOD" => "POST", "PATH_INFO" => @batch[:endpoint],
                "rack.input" => StringIO.new(JSON.generate(body)) }
        @answer.call(Request.new(env, limits, connection: Watch.new(self)))
      rescue Problem
        # The server has too much to do, or ends.
        raise Job::Gone if over?

        sleep(PAUSE)
        retry
      end

      def keep(kind, line, response: nil, error: nil)
        @mutex.synchronize do
          @full ||= !@results[kind].add(id: storage.name("batch_req_"), custom_id: line.custom_id, response: response,
                                        error: error)
          next if @full

          @services.metrics.add("candle_batch_lines_total", status: kind)
          counts = @batch[:request_counts]
          @batch[:request_counts] = counts.merge(kind => counts[kind] + 1)
          now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
          next if @told && now - @told < NEWS

          @told = now
          note
        end
      end

      # A server that ends leaves the batch as it is: the next one goes on with it.
      def conclude(input)
        return note if gate.closed? && !cancelled?
        return fail_with([full_error]) if @full
        return finish("cancelled") if cancelled?

        expire(input) if expired?
        note(status: "finalizing", finalizing_at: Time.now.to_i)
        finish(expired? && unfinished? ? "expired" : "completed")
      end

      def unfinished?
        counts = @batch[:request_counts]
        @expired || counts[:completed] + counts[:failed] < counts[:total]
      end

      # What was not computed in time is an error each.
      def expire(input)
        return unless unfinished?

        @expired = true
        known = Set.new
        @results.each_value { |results| results.resume { |id| known << id } }
        error = { code: "batch_expired", message: "the request was not computed before the batch expired" }
        input.each { |line| keep(:failed, line, error: error) unless known.include?(line.custom_id) }
      end

      def full_error
        { code: "storage_full", line: nil, param: nil,
          message: "the files of this server take #{limits.storage_bytes} bytes at most: delete some and create the " \
                   "batch again" }
      end

      def fail_with(errors)
        note(errors: { object: "list", data: errors })
        finish("failed")
      end

      def finish(status)
        @results.each_value(&:close)
        files = { output_file_id: @results[:completed].publish("batch_output"),
                  error_file_id: @results[:failed].publish("batch_output") }
        note(status: status, "#{status}_at": Time.now.to_i, **files)
        FileUtils.rm_f(storage.place("batches", @batch[:id], "cancel"))
        true
      end

      def note(**news)
        @batch = @batch.merge(news)
        storage.write("batches", @batch)
      end
    end
  end
end
