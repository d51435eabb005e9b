# frozen_string_literal: true

module Candle
  # What an {Agent} came to.
  #
  # @!attribute response
  #   @return [String, nil] the final answer; nil while calls wait for approval
  # @!attribute messages
  #   @return [Array<Hash>] the conversation before it
  # @!attribute iterations
  #   @return [Integer] how often the model was asked
  # @!attribute tool_calls_made
  #   @return [Integer]
  # @!attribute status
  #   @return [Symbol] `:done`, or `:waiting` for approval
  # @!attribute reasoning
  #   @return [String, nil] what the model thought before the final answer
  AgentResult = Struct.new(:response, :messages, :iterations, :tool_calls_made, :status, :reasoning,
                           keyword_init: true) do
    # @return [Boolean] whether calls wait for approval
    def waiting?
      status == :waiting
    end

    # @return [String] one line
    def inspect
      "#<Candle::AgentResult #{response.to_s[0, 40].inspect} #{iterations} iterations, #{tool_calls_made} calls>"
    end
  end
end
