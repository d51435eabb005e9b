# frozen_string_literal: true

module Candle
  class Server
    # OpenAI's `/v1/batches`: requests of a file that are computed in the background.
    #
    # @api private
    class OpenAIBatches < OpenAI
      # Where the requests of a batch may go.
      ENDPOINTS = %w[/v1/chat/completions /v1/completions /v1/embeddings /v1/responses].freeze
      # How long a batch may take, as clients say it, and in seconds.
      WINDOW = "24h"
      SECONDS = 24 * 3600
      # How many a page of a list has.
      PAGE = 100
      # What metadata may have.
      PAIRS = 16
      # The times of a batch, as far as they have come.
      TIMES = %i[in_progress_at finalizing_at completed_at failed_at expired_at cancelling_at cancelled_at].freeze
      private_constant :WINDOW, :SECONDS, :PAGE, :PAIRS, :TIMES

      # @param services [API::Services]
      # @param batches [Batches]
      def initialize(services, batches)
        super(services)
        @batches = batches
      end

      # @param request [Request]
      # @return [Array] an answer of Rack
      def create(request)
        endpoint = request.field("endpoint", String)
        unless ENDPOINTS.include?(endpoint)
          raise invalid("endpoint must be one of #{ENDPOINTS.join(", ")}", param: "endpoint")
        end
        unless request.field("completion_window", String) == WINDOW
          raise invalid("completion_window must be #{WINDOW}", param: "completion_window")
        end

        metadata = metadata(request)
        file = input_file(request)
        check_count
        now = Time.now.to_i
        batch = { id: storage.name("batch_"), endpoint: endpoint, input_file_id: file[:id], status: "validating",
                  created_at: now, expires_at: now + SECONDS, metadata: metadata,
                  request_counts: { total: 0, completed: 0, failed: 0 } }
        storage.write("batches", batch)
        @batches.forget
        @batches.attend
        json(shown(batch))
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: a page of all batches, the newest first
      def list(request)
        json(page(request, storage.list("batches"), PAGE) { |batch| shown(batch) })
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: one batch
      def show(request)
        json(shown(batch(request)))
      end

      # @param request [Request]
      # @return [Array] an answer of Rack
      def cancel(request)
        found = batch(request)
        unless Batches.open?(found)
          raise Problem.new(409, "batch_over", "the batch is #{found[:status]} and can't be cancelled")
        end

        mark = storage.place("batches", found[:id], "cancel")
        File.write(mark, Time.now.to_i.to_s)
        @batches.attend
        json(shown(batch(request)))
      end

      private

      def storage
        services.storage
      end

      def batch(request)
        id = request.path.split("/")[3]
        storage.read("batches", id) || raise(Problem.new(404, "not_found", "there is no batch #{id.inspect[0, 60]}"))
      end

      def input_file(request)
        id = request.field("input_file_id", String)
        file = storage.read("files", id)
        raise invalid("there is no file #{id.inspect[0, 60]}", param: "input_file_id") unless file
        return file if file[:purpose] == "batch"

        raise invalid("the file has the purpose #{file[:purpose]}, and a batch needs batch", param: "input_file_id")
      end

      def check_count
        count = @batches.open.size
        return if count < limits.batches

        raise Problem.new(429, "too_many_batches", "the server has #{count} batches that are not over, and takes no " \
                                                   "more", headers: { "retry-after" => "60" })
      end

      def metadata(request)
        given = request.field("metadata", Hash, default: nil) or return
        return given if given.size <= PAIRS && given.all? { |key, value| key.size <= 64 && text?(value) }

        raise invalid("metadata must have at most #{PAIRS} short texts", param: "metadata")
      end

      def text?(value)
        value.is_a?(String) && value.size <= 512
      end

      # A batch that someone has cancelled is not that before its lines have ended.
      def shown(batch)
        times = TIMES.to_h { |name| [name, batch[name]] }
        mark = storage.place("batches", batch[:id], "cancel")
        if Batches.open?(batch) && File.exist?(mark)
          batch = batch.merge(status: "cancelling")
          times[:cancelling_at] = File.mtime(mark).to_i
        end
        { id: batch[:id], object: "batch", endpoint: batch[:endpoint], errors: batch[:errors],
          input_file_id: batch[:input_file_id], completion_window: WINDOW, status: batch[:status],
          output_file_id: batch[:output_file_id], error_file_id: batch[:error_file_id],
          created_at: batch[:created_at], expires_at: batch[:expires_at], **times,
          request_counts: batch[:request_counts], metadata: batch[:metadata] }
      rescue Errno::ENOENT
        retry
      end
    end
  end
end
