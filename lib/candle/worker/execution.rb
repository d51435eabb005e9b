# frozen_string_literal: true

module Candle
  class Worker
    # Jobs of a worker: their check, their run, and the events that tell of it.
    #
    # @api private
    class Execution
      # A job that can't be run, with one error per field.
      class Invalid < Server::Problem
        # @return [Array<Hash>] `{field:, message:}` each
        attr_reader :fields

        def initialize(fields)
          super(400, "INVALID_REQUEST", fields.map { |error| "#{error[:field]} #{error[:message]}" }.join("; "))
          @fields = fields
        end
      end

      # What each field must be: the test, what to say otherwise, and whether it must be there.
      FIELDS = {
        "job_id" => [->(value) { value.is_a?(String) && value.size.between?(1, 256) }, "must be a text", true],
        "prompt" => [->(value) { value.is_a?(String) && value.size.between?(1, 32_768) },
                     "must be a text of 1 to 32768 characters", true],
        "max_tokens" => [->(value) { value.is_a?(Integer) && value.between?(1, 2048) }, "must be from 1 to 2048"],
        "temperature" => [->(value) { value.is_a?(Numeric) && value.between?(0, 2) }, "must be from 0 to 2"],
        "seed" => [->(value) { value.is_a?(Integer) && value >= 0 }, "must be a whole number"],
        "top_p" => [->(value) { value.is_a?(Numeric) && value.between?(0, 1) }, "must be from 0 to 1"],
        "top_k" => [->(value) { value.is_a?(Integer) && value >= 0 }, "must be a whole number"],
        "min_p" => [->(value) { value.is_a?(Numeric) && value.between?(0, 1) }, "must be from 0 to 1"],
        "repetition_penalty" => [->(value) { value.is_a?(Numeric) && value.positive? && value <= 2 },
                                 "must be above 0 and at most 2"],
        "stop" => [->(value) { value.is_a?(Array) && value.size <= 4 && value.all?(String) },
                   "must be a list of at most 4 texts"]
      }.freeze
      # How often a running job tells its speed, in seconds.
      INTERVAL = 1.0
      private_constant :FIELDS, :INTERVAL

      # @param problem [Exception]
      # @return [String] the protocol's name for a kind of failure
      def self.code(problem)
        case problem.code
        when "out_of_memory" then "VRAM_OOM"
        when "timeout" then "TIMEOUT"
        when "interrupted", "shutting_down" then "CANCELLED"
        when "invalid_request", "invalid_json", "body_too_large", "INVALID_REQUEST" then "INVALID_REQUEST"
        when "overloaded", "invalid_token", "forbidden", "NOT_FOUND" then problem.code.upcase
        else "INFERENCE_FAILED"
        end
      end

      # @param worker [Worker]
      # @param gate [Server::Gate]
      # @param metrics [Server::Metrics]
      def initialize(worker, gate:, metrics:)
        @worker = worker
        @gate = gate
        @metrics = metrics
      end

      # @param request [Server::Request]
      # @return [Array] an answer of Rack: events
      def call(request)
        job = checked(request.json)
        config = configuration(job)
        body = @gate.pass(request.connection, request.deadline) do |leave|
          work = Server::Job.new(request.connection, request.deadline) { |emit| execute(job, config, emit) }
          Server::Stream.new(work, request.connection, failure: method(:failure), leave: leave)
        end
        body.on_end { |error| @metrics.add("candle_cancelled_total") if error.is_a?(Server::Job::Gone) }
        [200, { "content-type" => "text/event-stream", "cache-control" => "no-cache" }, body]
      end

      private

      def failure(problem)
        Server::Stream.event({ code: self.class.code(problem), message: problem.message }, event: "error")
      end

      def checked(fields)
        errors = FIELDS.filter_map do |name, (allowed, message, needed)|
          value = fields[name]
          next if value.nil? ? !needed : allowed.call(value)

          { field: name, message: value.nil? ? "is missing" : message }
        end
        raise Invalid, errors if errors.any?

        fields
      end

      def configuration(job)
        top_k = job["top_k"]
        GenerationConfig.new({
          max_length: job["max_tokens"] || 512, temperature: job["temperature"] || 0.7, seed: job["seed"],
          top_p: job["top_p"], top_k: top_k&.zero? ? nil : top_k, min_p: job["min_p"],
          repetition_penalty: job["repetition_penalty"], stop_sequences: job["stop"] || []
        }.compact)
      rescue ArgumentError => e
        raise Server::Problem.new(400, "INVALID_REQUEST", e.message)
      end

      def execute(job, config, emit)
        event = ->(name, data) { emit.call(Server::Stream.event(data, event: name)) }
        event.call("started", { job_id: job["job_id"], model: File.basename(@worker.model.model_id.to_s) })
        began = reported = clock
        index = -1
        completion = @worker.model.complete(job["prompt"], config: config) do |piece|
          event.call("token", { t: piece, i: index += 1 })
          next if clock - reported < INTERVAL

          reported = clock
          event.call("metrics", speed((index + 1) / (clock - began)))
        end
        finish(completion, clock - began, event)
      end

      def finish(completion, seconds, event)
        count = completion.usage.completion_tokens
        @metrics.add("candle_tokens_total", completion.usage.prompt_tokens, direction: "in")
        @metrics.add("candle_tokens_total", count, direction: "out")
        event.call("metrics", speed(count / [seconds, 1e-6].max))
        event.call("end", { tokens_out: count, decode_time_ms: (seconds * 1000).round,
                            stop_reason: completion.finish_reason.to_s })
      end

      def speed(tokens_per_second)
        { tokens_per_sec: tokens_per_second.round(2), vram_bytes: @worker.vram_bytes }
      end

      def clock
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end
    end
  end
end
