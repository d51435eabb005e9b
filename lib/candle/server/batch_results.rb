# frozen_string_literal: true

require "json"

module Candle
  class Server
    # One of the two files that a batch writes, line by line.
    #
    # @api private
    class BatchResults
      # How many bytes are written before the folder is measured again.
      MEASURED = 1024 * 1024
      private_constant :MEASURED

      # @param storage [Storage]
      # @param batch_id [String]
      # @param kind [String] `output` or `errors`
      def initialize(storage, batch_id, kind)
        @storage = storage
        @batch_id = batch_id
        @kind = kind
        # The same for every process that goes on with the batch.
        @id = "file-#{batch_id.split("_").last[0, 22]}#{kind == "output" ? "0a" : "0b"}"
        @path = storage.place("files", @id, "data")
        @room = 0
      end

      # Reads what an earlier process has written; a line that was cut off is removed.
      #
      # @yieldparam custom_id [String] of each line
      # @return [Integer] how many there are
      def resume
        close
        return 0 unless File.exist?(@path)

        count = whole = 0
        File.foreach(@path, mode: "rb") do |line|
          break unless line.end_with?("\n")

          whole += line.bytesize
          count += 1
          yield JSON.parse(line)["custom_id"]
        end
        File.truncate(@path, whole)
        count
      end

      # @param record [Hash]
      # @return [Boolean] whether there was room for it
      def add(record)
        line = "#{JSON.generate(record)}\n"
        @room = [@storage.room, MEASURED].min if @room < line.bytesize
        return false if @room < line.bytesize

        @file ||= File.open(@path, "ab")
        @file.write(line)
        @file.flush
        @room -= line.bytesize
        true
      end

      # @return [void]
      def close
        @file&.close
        @file = nil
      end

      # Lets clients read it.
      #
      # @param purpose [String]
      # @return [String, nil] the id of the file, nil for one without lines
      def publish(purpose)
        return unless File.size?(@path)

        now = Time.now.to_i
        record = { id: @id, created_at: now, expires_at: now + OpenAIFiles::LIFETIME, bytes: File.size(@path),
                   filename: "#{@batch_id}_#{@kind}.jsonl", purpose: purpose }
        @storage.write("files", record)
        @id
      end
    end
  end
end
