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
      unless Array === messages
        raise InvalidInputError, "messages must be an Array of Hashes, not #{Arguments.shown(messages)}"
      end

      messages.each_with_index { |message, index| check(message, "messages[#{index}]") }
    end

    # @param messages [Array<Hash>]
    # @return [Array<Hash>] the same
    # @raise [InvalidInputError] for none
    def self.some(messages)
      return messages unless messages.empty?

      raise InvalidInputError, 'messages is empty: pass at least one, such as { role: "user", content: "Hello" }'
    end

    # @param messages [Array<Hash>]
    # @return [Boolean] whether one of them has an image in it
    def self.images?(messages)
      Array === messages && messages.any? do |message|
        content = Hash === message ? message[:content] || message["content"] : nil
        Array === content && content.any? { |part| image?(part) }
      end
    end

    # @param part [Object] of a message's content
    # @return [Boolean]
    def self.image?(part)
      Hash === part && (part[:type] || part["type"]).to_s == "image"
    end

    # @param part [Object] of a message's content
    # @return [Boolean]
    def self.text?(part)
      Hash === part && (part[:type] || part["type"]).to_s == "text" && String === (part[:text] || part["text"])
    end

    def self.check(message, place)
      unless Hash === message && (message.key?(:role) || message.key?("role"))
        raise InvalidInputError, "#{place} must be a Hash with a role, not #{Arguments.shown(message)}"
      end

      of_kind(message, :role, place, "a String", [String, Symbol])
      of_kind(message, :content, place, "a String or an Array of parts", [String, Array, NilClass])
    end

    def self.of_kind(message, name, place, wanted, kinds)
      value = message.fetch(name) { message[name.to_s] }
      return if kinds.any? { |kind| kind === value } # rubocop:disable Style/CaseEquality

      raise InvalidInputError, "the #{name} of #{place} must be #{wanted}, not #{Arguments.shown(value)}"
    end
    private_class_method :check, :of_kind
  end
end
