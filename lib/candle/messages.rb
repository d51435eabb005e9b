# frozen_string_literal: true

module Candle
  # Checks of conversations.
  #
  # @api private
  module Messages
    # @param messages [Array<Hash>]
    # @return [Array<Hash>] the same
    # @raise [InvalidInputError] for what isn't a message, naming its index
    def self.checked(messages)
      unless messages.is_a?(Array)
        raise InvalidInputError, "messages must be an Array of Hashes, not #{messages.inspect[0, 80]}"
      end

      messages.each_with_index do |message, index|
        next if message.is_a?(Hash) && (message.key?(:role) || message.key?("role"))

        raise InvalidInputError, "messages[#{index}] must be a Hash with a role, not #{message.inspect[0, 80]}"
      end
    end
  end
end
