# frozen_string_literal: true

require "json"

module Candle
  # Checks of arguments that model classes share.
  #
  # @api private
  module Arguments
    # What begins with the sound of a vowel: such letters, and abbreviations of which the first letter is spoken so.
    VOWEL = /\A(?:[aeioAEIO]|u(?!ni|se)|U(?!RI|RL|ni|DP)|[FHLMNRSX][A-Z])/
    private_constant :VOWEL

    module_function

    # @param value [Object]
    # @param name [String] what to call it in an error
    # @return [Integer, nil] a positive number, or nil when there is none
    # @raise [ArgumentError] for anything else
    def count(value, name)
      case value
      when nil then return
      when Integer then return value if value.between?(1, (2**48) - 1)
      end
      raise ArgumentError, "#{name} must be a positive Integer, not #{shown(value)}"
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
      found = symbol(value)
      return found if allowed.include?(found)

      raise ArgumentError, "#{name} must be one of #{allowed.map(&:inspect).join(", ")}, not #{shown(value)}"
    end

    # @param value [String, Symbol]
    # @param name [String]
    # @return [String] in UTF-8
    # @raise [ArgumentError] for anything else
    # @raise [InvalidInputError] when it isn't valid UTF-8
    def label(value, name)
      value = value.to_s if Symbol === value
      return TextInput.utf8(value, name) if TextInput.text?(value)

      raise ArgumentError, "#{name} must be a String or a Symbol, not #{shown(value)}"
    end

    # @param value [Array<String, Symbol>, String, Symbol]
    # @return [Array<String>] each once
    # @raise [ArgumentError] for anything else
    # @raise [InvalidInputError] for none, and for one that isn't valid UTF-8
    def labels(value)
      names = TextInput.text?(value) || Symbol === value ? [value] : list(value)
      raise ArgumentError, "labels must be an Array of Strings, not #{shown(value)}" unless Array === names
      raise InvalidInputError, "labels must not be empty" if names.empty?

      names.map { |name| label(name, "labels") }.uniq
    end

    # @param value [Array<String, Symbol>, String, Symbol, nil]
    # @param known [Array<String>] the labels of a model
    # @return [Array<String>, nil] each once; nil for nil
    # @raise [ArgumentError] for anything else, and for a label that is not known
    # @raise [InvalidInputError] for none, and for one that isn't valid UTF-8
    def known_labels(value, known)
      return if NilClass === value

      wanted = labels(value)
      unknown = wanted - known
      return wanted if unknown.empty?

      raise ArgumentError, "the model has no label #{unknown.first.inspect}; it has #{known.first(20).join(", ")}"
    end

    # @param value [Object] anything, also what has none of the methods that all objects have
    # @param method [Symbol]
    # @return [Boolean] whether it has that method
    def answers?(value, method)
      case value
      when Object then value.respond_to?(method)
      else false
      end
    end

    # One text or several, as most calls take them.
    #
    # @param input [String, Array<String>, Enumerable<String>]
    # @return [Array(Array<String>, Boolean)] the texts in UTF-8, and whether a single one was given
    # @raise [InvalidInputError] naming the index of what isn't a text
    def texts(input, name = "texts")
      return [[TextInput.utf8(input, "text")], true] if TextInput.text?(input)

      [TextInput.utf8_all(list(input), name), false]
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
      case value
      when Numeric then return value.to_f if value.real? && value.between?(0, 1)
      end
      raise ArgumentError, "#{name} must be a number from 0 to 1, not #{shown(value)}"
    end

    # @param value [Integer]
    # @param name [String]
    # @return [Integer] of 64 bits at most
    # @raise [InvalidInputError] for anything else
    def integer(value, name)
      case value
      when Integer then return value if value.bit_length < 64
      end
      raise InvalidInputError, "#{name} must be an Integer of 64 bits, not #{shown(value)}"
    end

    # @param value [Numeric]
    # @param name [String]
    # @return [Float]
    # @raise [InvalidInputError] for anything but a real number
    def float(value, name)
      case value
      when Numeric then return value.to_f if value.real?
      end
      raise InvalidInputError, "#{name} must be a real number, not #{shown(value)}"
    end

    # @param value [Object]
    # @return [Array, Object] the members of any Enumerable but a Hash; other things as they are
    def list(value)
      case value
      when Hash then value
      when Enumerable then members(value)
      else value
      end
    end

    # @param value [Enumerable]
    # @return [Array] its members
    # @raise [InvalidInputError] for a Range without an end
    def members(value)
      if Range === value && [nil, Float::INFINITY].include?(value.end)
        raise InvalidInputError, "#{shown(value)} is endless: give it an end"
      end

      value.to_a
    end

    # @param value [Object]
    # @param name [String]
    # @param error [Class] what is raised where it can't
    # @return [String] the value as JSON
    def json(value, name, error: InvalidInputError)
      JSON.generate(value)
    rescue JSON::JSONError, EncodingError => e
      raise error, "#{name} can't be written as JSON: #{e.message}"
    rescue NoMethodError => e
      raise if Object === e.receiver

      raise error, "#{name} can't be written as JSON: there is a BasicObject in it"
    end

    # What an error says of a value, whatever that value makes of being asked.
    #
    # @param value [Object]
    # @return [String]
    def shown(value)
      case value
      when Object then String(value.inspect)[0, 80]
      else "a BasicObject"
      end
    rescue StandardError, SystemStackError
      one(value.class)
    end

    # @param noun [String, Class]
    # @return [String] the noun with its indefinite article
    def one(noun)
      noun = noun.to_s
      "#{noun.match?(VOWEL) ? "an" : "a"} #{noun}"
    end

    def symbol(value)
      value.to_sym if answers?(value, :to_sym)
    rescue EncodingError
      nil
    end
    private_class_method :symbol
  end
end
