# frozen_string_literal: true

module Candle
  # Texts as the native code takes them: valid UTF-8.
  #
  # @api private
  module TextInput
    module_function

    # @param text [String] in any encoding
    # @param name [String] what to call it in an error
    # @return [String] in UTF-8
    # @raise [InvalidInputError] when it isn't a String or isn't valid UTF-8
    def utf8(text, name = "text")
      raise InvalidInputError, "#{name} must be a String, not #{describe(text)}" unless text?(text)

      text = transcode(string_of(text, name), name)
      return text if text.valid_encoding?

      raise InvalidInputError, "#{name} is not valid UTF-8: repair it with text.scrub, or read it in its own encoding"
    end

    # @param value [Object] anything, also what has none of the methods that all objects have
    # @return [Boolean] whether it may stand for a String
    def text?(value)
      case value
      when Object then value.respond_to?(:to_str)
      else false
      end
    end

    # @param path [String, Pathname] or whatever answers `to_path`
    # @param name [String] what to call it in an error
    # @return [String] in UTF-8
    # @raise [InvalidInputError] when it is neither a String nor a path
    def path(path, name)
      case path
      when Object then path = path.to_path if path.respond_to?(:to_path)
      end
      utf8(path, name)
    end

    # @param texts [Array<String>]
    # @param name [String] what to call them in an error
    # @return [Array<String>] in UTF-8
    # @raise [InvalidInputError] naming the index of what isn't a text
    def utf8_all(texts, name = "texts")
      case texts
      when Array then texts.each_with_index.map { |text, index| utf8(text, "#{name}[#{index}]") }
      else raise InvalidInputError, "#{name} must be an Array of Strings, not #{describe(texts)}"
      end
    end

    # @param text [#to_str]
    # @param name [String] what to call it in an error
    # @return [String] as it is
    # @raise [InvalidInputError] when its `to_str` gives something else
    def string_of(text, name)
      case string = text.to_str
      when String then string
      else raise InvalidInputError, "#{name} must be a String, but its to_str gives #{describe(string)}"
      end
    end

    # Binary strings come from files and sockets; their bytes are taken for UTF-8.
    def transcode(text, name)
      case text.encoding
      when Encoding::UTF_8, Encoding::US_ASCII then text
      when Encoding::BINARY then text.dup.force_encoding(Encoding::UTF_8)
      else text.encode(Encoding::UTF_8)
      end
    rescue EncodingError => e
      raise InvalidInputError, "#{name} can't be converted from #{text.encoding} to UTF-8 (#{e.message}): " \
                               "convert it with text.encode(\"UTF-8\", invalid: :replace, undef: :replace)"
    end

    def describe(value)
      case value
      when nil then "nil"
      when Object then Arguments.one(value.class)
      else "a BasicObject"
      end
    end
    private_class_method :transcode, :describe
  end
end
