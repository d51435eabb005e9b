# frozen_string_literal: true

module Candle
  # A model's wish to have a tool called.
  #
  # @!attribute name
  #   @return [String] the tool's name
  # @!attribute arguments
  #   @return [Hash] with String keys
  # @!attribute id
  #   @return [String, nil] what the model calls this call, where it does
  ToolCall = Struct.new(:name, :arguments, :id, keyword_init: true)
end
