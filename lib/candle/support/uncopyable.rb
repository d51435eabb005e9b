# frozen_string_literal: true

module Candle
  # What native memory stands behind can't be copied by `dup` or `Marshal`, and says what to do instead.
  #
  # @api private
  module Uncopyable
    # @raise [Error] always
    def dup
      raise Error, "#{Arguments.one(self.class)} can't be copied: share this one, which any number of threads may use"
    end

    # @raise [Error] always
    def clone(freeze: nil) # rubocop:disable Lint/UnusedMethodArgument
      dup
    end

    # @raise [Error] always
    def marshal_dump
      raise Error, "#{Arguments.one(self.class)} can't be marshalled: #{marshal_instead}"
    end

    private

    def marshal_instead
      "send the path or id that it was loaded from, and load it there"
    end
  end
end
