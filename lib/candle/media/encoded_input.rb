# frozen_string_literal: true

module Candle
  # How {Image} and {Audio} read encoded files: from paths, bytes and IOs, up to a limit.
  #
  # @api private
  module EncodedInput
    # What a path to a file does not look like.
    ADDRESS = %r{\A(?:[a-z][a-z0-9+.-]*://|data:)}i
    private_constant :ADDRESS

    private

    def limit(count, name)
      Arguments.count(count, name) || raise(ArgumentError, "#{name} must be a positive Integer, not nil")
    end

    # @return [Array(Symbol, String)] `:bytes` or `:file`, and which
    def bytes_or_file(string, name)
      return [:bytes, string] if _encoded(string) || string.b.include?("\0") || string.empty?
      raise InvalidInputError, "#{name} is a URL. URLs are not fetched: download it, and pass its bytes" if
        string.b.match?(ADDRESS)

      [:file, TextInput.utf8(string, name)]
    end

    # Not more than may be decoded is read, and one byte beyond it, which makes it an error.
    def read(io, name)
      bytes = io.read(max_bytes + 1)
      return bytes.b if bytes.respond_to?(:to_str)

      raise InvalidInputError, "#{name} has nothing left to read"
    end
  end
end
