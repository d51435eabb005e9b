# frozen_string_literal: true

module Candle
  # Checks of conversations.
  #
  # @api private
  module Messages
    # The roles that every conversation may have. Some chat templates know more, and name them.
    ROLES = %w[system developer user assistant tool function].freeze

    # Messages that were checked where they came in: {.checked} does not read them again.
    class Checked < Array; end

    # @param messages [Array<Hash>]
    # @yieldreturn [Array<String, nil>] the chat templates whose roles are allowed too; asked for where a role is not
    #   one of {ROLES}
    # @return [Array<Hash>] the same
    # @raise [InvalidInputError] for what isn't a message, naming its index
    def self.checked(messages, &templates)
      return messages if Checked === messages

      list(messages).each_with_index { |message, index| check(message, "messages[#{index}]", &templates) }
    end

    # @param messages [Array<Hash>]
    # @yieldparam message [Hash]
    # @yieldreturn [Hash] the message that stands for it
    # @return [Array<Hash>] those; checked where `messages` were
    def self.rewritten(messages, &block)
      like(messages, messages.map(&block))
    end

    # @param messages [Array<Hash>]
    # @param made [Array<Hash>] what was made of them
    # @return [Array<Hash>] `made`; checked where `messages` were
    def self.like(messages, made)
      Checked === messages ? Checked.new(made) : made
    end

    # @param messages [Array<Hash>]
    # @return [Array<Hash>] the same
    # @raise [InvalidInputError] for what isn't an Array
    def self.list(messages)
      return messages if Array === messages

      raise InvalidInputError, "messages must be an Array of Hashes, not #{Arguments.shown(messages)}"
    end

    # @param role [String, Symbol]
    # @yieldreturn [Array<String, nil>] as in {.checked}
    # @return [Boolean] whether messages may have that role
    def self.role?(role)
      return true if ROLES.include?(role.to_s)
      return false unless block_given?

      literal = /["']#{Regexp.escape(role.to_s)}["']/
      Array(yield).compact.any? { |template| template.match?(literal) }
    end

    # @param role [Object]
    # @param place [String] where the message stands
    # @return [String] what is wrong with a role that {.role?} does not know
    def self.unknown_role(role, place)
      "the role of #{place} must be #{ROLES[0...-1].join(", ")} or #{ROLES.last}, or one that the chat template " \
        "names, not #{Arguments.shown(role)}"
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
        Array === content && content.any? { |part| image?(part) || of_type?(part, "video") }
      end
    end

    # @param part [Object] of a message's content
    # @return [Boolean]
    def self.image?(part)
      of_type?(part, "image")
    end

    # @param part [Object] of a message's content
    # @param type [String]
    # @return [Boolean]
    def self.of_type?(part, type)
      Hash === part && (part[:type] || part["type"]).to_s == type
    end

    # @param part [Object] of a message's content
    # @return [Boolean]
    def self.text?(part)
      Hash === part && (part[:type] || part["type"]).to_s == "text" && String === (part[:text] || part["text"])
    end

    def self.check(message, place, &templates)
      unless Hash === message && (message.key?(:role) || message.key?("role"))
        raise InvalidInputError, "#{place} must be a Hash with a role, not #{Arguments.shown(message)}"
      end

      of_kind(message, :role, place, "a String", [String, Symbol])
      of_kind(message, :content, place, "a String or an Array of parts", [String, Array, NilClass])
      role = field(message, :role)
      raise InvalidInputError, unknown_role(role, place) unless role?(role, &templates)
      return unless field(message, :content).nil? && field(message, :tool_calls).nil?

      raise InvalidInputError,
            "#{place} has no content: pass it as in { role: #{role.to_s.inspect}, content: \"Hello\" }"
    end

    def self.field(message, name)
      message.fetch(name) { message[name.to_s] }
    end

    def self.of_kind(message, name, place, wanted, kinds)
      value = field(message, name)
      return if kinds.any? { |kind| kind === value } # rubocop:disable Style/CaseEquality

      raise InvalidInputError, "the #{name} of #{place} must be #{wanted}, not #{Arguments.shown(value)}"
    end
    private_class_method :check, :field, :of_kind
  end
end
