# frozen_string_literal: true

module Candle
  # Where an {Agent} is: the conversation, and what it has cost. It can be written as JSON and read again, in another
  # process too.
  #
  # @!attribute messages
  #   @return [Array<Hash>]
  # @!attribute iterations
  #   @return [Integer] how often the model was asked
  # @!attribute tool_calls_made
  #   @return [Integer]
  # @!attribute tokens
  #   @return [Integer] how many tokens it generated
  # @!attribute seconds
  #   @return [Float] how long it worked
  # @!attribute pending
  #   @return [Array<Hash>] calls that were not made yet: `{name:, arguments:, id:}`
  AgentState = Struct.new(:messages, :iterations, :tool_calls_made, :tokens, :seconds, :pending, keyword_init: true) do
    # @param hash [Hash] as {#to_h} gives it, or as JSON has it
    # @return [AgentState]
    # @raise [ArgumentError] for anything else
    def self.from_h(hash)
      hash = hash.to_h.transform_keys(&:to_sym)
      unless hash[:messages].is_a?(Array)
        raise ArgumentError, "the state of an agent must be a Hash with messages, as Agent#to_h gives it"
      end

      new(messages: hash[:messages].map { |message| message.transform_keys(&:to_sym) },
          iterations: hash[:iterations].to_i, tool_calls_made: hash[:tool_calls_made].to_i, tokens: hash[:tokens].to_i,
          seconds: hash[:seconds].to_f, pending: Array(hash[:pending]).map { |call| call.transform_keys(&:to_sym) })
    end

    # @param messages [Array<Hash>]
    # @return [AgentState] at the beginning
    def self.start(messages)
      new(messages: messages, iterations: 0, tool_calls_made: 0, tokens: 0, seconds: 0.0, pending: [])
    end

    # @return [Array<ToolCall>] the calls that were not made yet
    def pending_calls
      pending.map { |call| ToolCall.new(name: call[:name], arguments: call[:arguments], id: call[:id]) }
    end
  end
end
