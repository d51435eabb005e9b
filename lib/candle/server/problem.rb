# frozen_string_literal: true

module Candle
  class Server
    # Why a request can't be answered: a status of HTTP, a short name, and a sentence for the one who asked. Each
    # dialect writes it in its own form.
    class Problem < StandardError
      # What the library's errors mean to a client; the first that fits counts.
      MEANINGS = {
        InvalidInputError => [400, "invalid_request"], StructuredOutputError => [400, "output_cut_off"],
        TokenizerError => [400, "invalid_request"], UnsupportedModelError => [400, "unsupported_model"],
        ModelNotFoundError => [503, "model_unavailable"], DownloadError => [503, "model_unavailable"],
        OfflineError => [503, "model_unavailable"], CorruptModelError => [503, "model_unavailable"],
        Candle::OutOfMemoryError => [503, "out_of_memory"], DeviceError => [503, "device_failed"],
        InterruptedError => [503, "interrupted"]
      }.freeze

      # What is answered, as opposed to what ends the process or the thread.
      ANSWERED = [StandardError, ScriptError, NoMemoryError, SecurityError, SystemStackError].freeze

      # Absolute paths, as they stand in messages of the library and of the system.
      PATH = %r{(?<![\w:/])(?:~|\.{1,2})?(?:/[\w.@+%,~-]+)+/?}
      private_constant :MEANINGS, :PATH

      # @return [Integer] a status of HTTP
      attr_reader :status
      # @return [String] a short name that programs can test
      attr_reader :code
      # @return [String, nil] the argument that it is about
      attr_reader :param
      # @return [Hash{String => String}] headers that belong to the answer
      attr_reader :headers

      # @param error [Exception]
      # @return [Problem] what a client is told of it: nothing of the machine
      def self.for(error)
        return error if error.is_a?(Problem)

        status, code = MEANINGS.find { |kind, _| error.is_a?(kind) }&.last
        return new(status, code, without_paths(error.message)) if status

        Candle.logger.error { "#{error.class}: #{error.message}\n#{Array(error.backtrace).first(12).join("\n")}" }
        new(500, "internal_error", "the server failed; its log says why")
      end

      # @param message [String]
      # @return [String] the message with the last part of each path only
      def self.without_paths(message)
        message.gsub(PATH) { |path| path.count("/") > 1 || path.start_with?("/", "~") ? File.basename(path) : path }
      end

      def initialize(status, code, message, param: nil, headers: {})
        super(message)
        @status = status
        @code = code
        @param = param
        @headers = headers
      end
    end
  end
end
