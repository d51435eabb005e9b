# frozen_string_literal: true

require "json"
require "set"

module Candle
  class Server
    # The requests of a batch: one JSON object per line.
    #
    # @api private
    class BatchInput
      # A request of a batch.
      Line = Struct.new(:number, :custom_id, :body)
      # So many errors are told.
      TOLD = 20
      # What the client's own name of a request may have.
      NAME = (1..512)
      private_constant :TOLD, :NAME

      # @param path [String]
      # @param endpoint [String] where all of them go
      # @param limits [Limits]
      def initialize(path, endpoint, limits)
        @path = path
        @endpoint = endpoint
        @limits = limits
      end

      # @return [Array(Integer, Array<Hash>)] how many requests there are, and what is wrong with the file
      def check
        count = 0
        errors = []
        names = Set.new
        lines do |text, number|
          count += 1
          found = error_of(text, names)
          errors << { line: number, param: nil, **found } if found
          break if errors.size >= TOLD || count > @limits.batch_lines
        end
        [count, [size_error(count), *errors].compact]
      end

      # @yieldparam line [Line]
      # @return [void]
      def each
        lines do |text, number|
          value = parsed(text)
          yield Line.new(number, value["custom_id"], value["body"]) if value.is_a?(Hash)
        end
      end

      private

      # Empty lines don't count.
      def lines
        File.open(@path, "r:UTF-8") do |file|
          number = 0
          while (text = file.gets("\n", @limits.body_bytes + 1))
            number += 1
            yield text, number unless text.b.strip.empty?
          end
        end
      end

      def parsed(text)
        JSON.parse(text, max_nesting: 66)
      rescue JSON::ParserError, EncodingError
        nil
      end

      def size_error(count)
        return { code: "empty_file", message: "the file has no requests", line: nil, param: nil } if count.zero?
        return if count <= @limits.batch_lines

        { code: "too_many_requests", message: "the file has more than #{@limits.batch_lines} requests", line: nil,
          param: nil }
      end

      def error_of(text, names)
        return wrong("line_too_long", "this line is too long") if text.bytesize > @limits.body_bytes

        value = text.valid_encoding? ? parsed(text) : nil
        return wrong("invalid_json_line", "this line is not a JSON object") unless value.is_a?(Hash)

        name_error(value["custom_id"], names) || place_error(value)
      end

      def name_error(name, names)
        unless name.is_a?(String) && NAME.cover?(name.size)
          return wrong("missing_custom_id", "custom_id must be a text of #{NAME.min} to #{NAME.max} characters")
        end

        wrong("duplicate_custom_id", "another line has this custom_id") unless names.add?(name)
      end

      def place_error(value)
        return wrong("invalid_method", "method must be POST") unless value["method"] == "POST"
        return wrong("mismatched_endpoint", "url must be #{@endpoint}") unless value["url"] == @endpoint

        wrong("missing_body", "body must be an object") unless value["body"].is_a?(Hash)
      end

      def wrong(code, message)
        { code: code, message: message }
      end
    end
  end
end
