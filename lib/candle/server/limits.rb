# frozen_string_literal: true

module Candle
  class Server
    # What a server takes on at most. Every limit is an argument of {Server#initialize}.
    class Limits
      # Each limit with its default: how many requests compute at once and how many wait for them, the bytes of a
      # request's body, the texts of a batch, the characters of one text, the images of a conversation, the tokens of an
      # answer, the answers of a request, and the seconds that one may take; the bytes of an uploaded file, the bytes
      # and the number of all files, the batches that are not over, and the requests of one.
      DEFAULTS = { running: 8, waiting: 64, body_bytes: 16 * 1024 * 1024, batch: 1024, characters: 1_000_000,
                   images: 16, max_tokens: 4096, answers: 8, seconds: 600, file_bytes: 100 * 1024 * 1024,
                   storage_bytes: 1024 * 1024 * 1024, files: 1000, batches: 16, batch_lines: 50_000 }.freeze

      # @return [Integer] requests that compute at the same time
      attr_reader :running
      # @return [Integer] requests that wait for one of them to end; further ones are answered by 429
      attr_reader :waiting
      # @return [Integer] bytes of a request's body
      attr_reader :body_bytes
      # @return [Integer] texts of one request
      attr_reader :batch
      # @return [Integer] characters of one text
      attr_reader :characters
      # @return [Integer] images of one conversation
      attr_reader :images
      # @return [Integer] tokens of one answer
      attr_reader :max_tokens
      # @return [Integer] answers to one prompt
      attr_reader :answers
      # @return [Numeric] seconds that a request may take, waiting included
      attr_reader :seconds
      # @return [Integer] bytes of an uploaded file
      attr_reader :file_bytes
      # @return [Integer] bytes of all files, those that batches write included
      attr_reader :storage_bytes
      # @return [Integer] uploaded files
      attr_reader :files
      # @return [Integer] batches that are not over; further ones are answered by 429
      attr_reader :batches
      # @return [Integer] requests of one batch
      attr_reader :batch_lines

      # @param given [Hash] some of {DEFAULTS}
      # @raise [ArgumentError] for an unknown limit, or one that is not a positive number
      def initialize(**given)
        unknown = given.keys - DEFAULTS.keys
        if unknown.any?
          raise ArgumentError, "unknown limit #{unknown.join(", ")}; known are #{DEFAULTS.keys.join(", ")}"
        end

        DEFAULTS.merge(given.compact).each do |name, value|
          instance_variable_set(:"@#{name}", checked(name, value))
        end
        freeze
      end

      # @return [Hash] every limit
      def to_h
        DEFAULTS.keys.to_h { |name| [name, public_send(name)] }
      end

      private

      def checked(name, value)
        allowed = name == :seconds ? Numeric : Integer
        return value if value.is_a?(allowed) && (value.positive? || (value.zero? && name == :waiting))

        raise ArgumentError, "#{name} must be a positive number, not #{value.inspect}"
      end
    end
  end
end
