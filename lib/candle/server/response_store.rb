# frozen_string_literal: true

require "json"

module Candle
  class Server
    # Responses that clients go on with or ask for again: in memory, or in the folder of the operator, where processes
    # share them. The oldest are removed first.
    #
    # @api private
    class ResponseStore
      # How many are kept at most, and how many bytes of them.
      COUNT = 1000
      BYTES = 64 * 1024 * 1024
      # The kind of the records in the folder.
      KIND = "responses"
      private_constant :KIND

      # @param storage [Storage]
      def initialize(storage)
        @storage = storage
        @mutex = Mutex.new
        @kept = {}
        @bytes = 0
      end

      # @param response [Hash] as it was answered
      # @param items [Array] the input that was its own
      # @return [void]
      def keep(response, items)
        record = { id: response.fetch(:id), created_at: response.fetch(:created_at),
                   expires_at: Time.now.to_i + OpenAIFiles::LIFETIME, response: response, items: items }
        return keep_on_disk(record) if @storage.lasting?

        text = JSON.generate(record)
        @mutex.synchronize do
          @kept[record[:id]] = text
          @bytes += text.bytesize
          @bytes -= @kept.delete(@kept.keys.first).bytesize while @kept.size > COUNT || @bytes > BYTES
        end
      end

      # @param id [String]
      # @return [Hash{String => Object}, nil] `response` and `items`
      def fetch(id)
        if @storage.lasting?
          found = @storage.read(KIND, id)
          return found && JSON.parse(JSON.generate(found))
        end

        text = @mutex.synchronize { @kept[id] }
        text && JSON.parse(text)
      end

      # @param id [String]
      # @return [Boolean] whether there was one
      def delete(id)
        return false unless fetch(id)

        if @storage.lasting?
          @storage.delete(KIND, id)
        else
          @mutex.synchronize { @bytes -= @kept.delete(id).to_s.bytesize }
        end
        true
      end

      # @param id [String] the last response of a conversation
      # @param most [Integer] how many items are read at most
      # @return [Array<Hash>] everything that was said, the oldest first
      # @raise [Problem] 400 when one of them is unknown
      def conversation(id, most)
        parts = []
        while id
          record = fetch(id) or raise missing(id)
          parts.unshift(record["items"] + record["response"]["output"])
          break if parts.sum(&:size) > most

          id = record["response"]["previous_response_id"]
        end
        parts.flatten(1)
      end

      private

      def missing(id)
        Problem.new(400, "previous_response_not_found",
                    "there is no response #{id.to_s.inspect[0, 60]}: the server keeps the last #{COUNT}, unless " \
                    "store is false. Send the whole conversation as input", param: "previous_response_id")
      end

      def keep_on_disk(record)
        @storage.write(KIND, record)
        paths = Dir.glob(@storage.place(KIND, record[:id], "json").sub(record[:id], "*"))
        kept = paths.filter_map { |path| [path, File.stat(path)] if File.exist?(path) }
                    .sort_by { |_, stat| -stat.mtime.to_f }
        bytes = 0
        over = kept.each_with_index.drop_while { |(_, stat), index| index < COUNT && (bytes += stat.size) <= BYTES }
        over.each { |(path, _), _| FileUtils.rm_f(path) }
      rescue Errno::ENOENT
        # Another process has removed some of them.
      end
    end
  end
end
