# frozen_string_literal: true

module Candle
  # What an {Agent} came to.
  #
  # @!attribute response
  #   @return [String] the final answer
  # @!attribute messages
  #   @return [Array<Hash>] the conversation before it
  # @!attribute iterations
  #   @return [Integer] how often the model was asked
  # @!attribute tool_calls_made
  #   @return [Integer]
  AgentResult = Struct.new(:response, :messages, :iterations, :tool_calls_made, keyword_init: true) do
    # @return [String] one line
    def inspect
      "#<Candle::AgentResult #{response.to_s[0, 40].inspect} #{iterations} iterations, #{tool_calls_made} calls>"
    end
  end
end
