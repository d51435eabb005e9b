# frozen_string_literal: true

module Candle
  # The root of what goes wrong with models, files, devices and texts. A call that is wrong in itself, by an unknown
  # keyword or an option of the wrong type or out of its range, raises Ruby's `ArgumentError`.
  class Error < RuntimeError; end

  # No such model: neither a local path nor a repository of the hub.
  class ModelNotFoundError < Error; end

  # A file could not be fetched from the hub.
  class DownloadError < Error; end

  # A file is not in the cache, and `HF_HUB_OFFLINE` forbids to fetch it.
  class OfflineError < Error; end

  # The model is sound but of a kind that red-candle does not run.
  class UnsupportedModelError < Error; end

  # A model's file is truncated, damaged or hostile.
  class CorruptModelError < Error; end

  # A device does not exist, can't be opened or failed.
  class DeviceError < Error; end

  # Not enough memory, on the machine or on its GPU.
  class OutOfMemoryError < Error; end

  # A tokenizer can't be loaded or used.
  class TokenizerError < Error; end

  # An argument that no call with this model can take.
  class InvalidInputError < Error; end

  # Text generation failed.
  class GenerationError < Error; end

  # Some of many prompts failed; the others did not.
  class BulkGenerationError < GenerationError
    # @return [Hash{Integer => Error}] what went wrong, by the index of the prompt
    attr_reader :failures
    # @return [Array, nil] the results of all prompts in their order, nil for those that failed; nil where they were
    #   yielded
    attr_reader :results

    # @param failures [Hash{Integer => Error}]
    # @param results [Array, nil]
    def initialize(failures, results: nil)
      index, first = failures.min_by(&:first)
      more = failures.size - 1
      super("prompts[#{index}] failed: #{first.message}#{" (and #{more} more, see #failures)" if more.positive?}")
      @failures = failures
      @results = results
    end
  end

  # Constrained generation ended before its result was complete.
  class StructuredOutputError < Error
    # @return [String, nil] the text generated so far
    attr_accessor :partial

    alias partial_text partial
  end

  # A native call was cancelled.
  class InterruptedError < Error; end

  # An agent reached its limit of steps without an answer.
  class AgentMaxIterationsError < Error
    # @return [Array<Hash>] the conversation so far
    attr_reader :messages

    def initialize(message = nil, messages: [])
      super(message)
      @messages = messages
    end
  end

  # An agent spent its budget of tokens or of time without an answer.
  class AgentBudgetError < AgentMaxIterationsError; end

  # An MCP server can't be started or reached, has ended, does not follow the protocol, or answered with an error.
  class MCPError < Error
    # @return [Integer, nil] the code of the error that the server answered with
    attr_reader :code

    # @param message [String, nil]
    # @param code [Integer, nil]
    def initialize(message = nil, code: nil)
      super(message)
      @code = code
    end
  end

  # An MCP server did not answer in time.
  class MCPTimeoutError < MCPError; end

  # A tool of an MCP server failed; the message is what the tool said.
  class MCPToolError < MCPError; end

  # A bug of red-candle: a panic of its native code, caught.
  class InternalError < Error; end
end
