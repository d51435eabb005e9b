# frozen_string_literal: true

module Candle
  # Something that happens while an {Agent} works.
  #
  # @!attribute type
  #   @return [Symbol] `:reasoning`, `:text`, `:tool_call`, `:tool_result` or `:done`
  # @!attribute iteration
  #   @return [Integer] how often the model was asked, this time included
  # @!attribute text
  #   @return [String, nil] a piece of what the model writes, or the whole answer
  # @!attribute tool_call
  #   @return [ToolCall, nil] the call that is to be made, or was
  # @!attribute result
  #   @return [Object, nil] what the tool returned
  # @!attribute error
  #   @return [String, nil] what the tool raised
  AgentEvent = Struct.new(:type, :iteration, :text, :tool_call, :result, :error, keyword_init: true)
end
