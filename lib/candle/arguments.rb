# frozen_string_literal: true

module Candle
  # Checks of arguments that model classes share.
  #
  # @api private
  module Arguments
    module_function

    # @param value [Object]
    # @param name [String] what to call it in an error
    # @return [Integer, nil] a positive number, or nil when there is none
    # @raise [ArgumentError] for anything else
    def count(value, name)
      return value if value.nil? || (value.is_a?(Integer) && value.between?(1, (2**48) - 1))

      raise ArgumentError, "#{name} must be a positive Integer, not #{value.inspect}"
    end

    # @param value [Integer, String, nil] bytes, or as in `"2GB"` and `"512MiB"`
    # @param name [String]
    # @return [Integer, nil] bytes
    # @raise [ArgumentError] for anything else
    def bytes(value, name)
      return count(value, name) unless value.is_a?(String)

      number, unit = value.match(/\A\s*(\d+(?:\.\d+)?)\s*([kmgt]i?b|b)\s*\z/i)&.captures
      raise ArgumentError, "#{name} must be bytes, or a text such as \"2GB\", not #{value.inspect}" unless number

      power = "bkmgt".index(unit[0].downcase)
      count((number.to_f * ((unit =~ /i/i ? 1024 : 1000)**power)).to_i, name)
    end

    # @param value [Object]
    # @param name [String]
    # @param allowed [Array<Symbol>]
    # @return [Symbol] one of `allowed`
    # @raise [ArgumentError] for anything else
    def choice(value, name, allowed)
      found = value.to_sym if value.respond_to?(:to_sym)
      return found if allowed.include?(found)

      raise ArgumentError, "#{name} must be one of #{allowed.map(&:inspect).join(", ")}, not #{value.inspect}"
    end

    # One text or several, as most calls take them.
    #
    # @param input [String, Array<String>, Enumerable<String>]
    # @return [Array(Array<String>, Boolean)] the texts in UTF-8, and whether a single one was given
    # @raise [InvalidInputError] naming the index of what isn't a text
    def texts(input, name = "texts")
      return [[TextInput.utf8(input, "text")], true] if input.respond_to?(:to_str)

      list = input.is_a?(Enumerable) && !input.is_a?(Hash) ? input.to_a : input
      [TextInput.utf8_all(list, name), false]
    end

    # @param labels [Array<String>]
    # @param template [String] with `{}` where a label goes
    # @param name [String] what to call the template in an error
    # @return [Array<String>] the template with each label
    # @raise [InvalidInputError] without labels, or without `{}`
    def filled(labels, template, name)
      raise InvalidInputError, "labels must not be empty" if labels.empty?
      unless template.include?("{}")
        raise InvalidInputError, "#{name} must hold {} where the label goes, as in \"This example is {}.\""
      end

      labels.map { |label| template.sub("{}") { label } }
    end

    # @param names [Array<String>]
    # @param scores [Array<Float>] one for each
    # @param top_k [Integer, nil] how many to return; nil is all
    # @return [Array<Hash>] `{label:, score:}`, best first
    def ranked(names, scores, top_k = nil)
      order = scores.each_index.sort_by { |index| [-scores[index], index] }
      order.first(top_k || order.size).map { |index| { label: names[index], score: scores[index] } }
    end

    # @param value [Numeric]
    # @param name [String]
    # @return [Float] from 0 to 1
    # @raise [ArgumentError] for anything else
    def fraction(value, name)
      return value.to_f if value.is_a?(Numeric) && value.real? && value.between?(0, 1)

      raise ArgumentError, "#{name} must be a number from 0 to 1, not #{value.inspect}"
    end
  end
end
