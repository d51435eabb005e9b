# frozen_string_literal: true

require "timeout"

Candle::Native.complete(:TextPattern)

module Candle
  # A regular expression that is looked for in texts: by the engine, whose time grows with the text alone, where the
  # pattern allows that; by Ruby, with a time limit, where it has lookaround, backreferences or the like. Cases are
  # folded character by character, so that `/ß/i` does not find `SS`.
  #
  # @api private
  class TextPattern
    # Seconds that Ruby may take for one text.
    TIME_LIMIT = 5

    # Matches by Ruby's own engine.
    class Backtracking
      # @param regexp [Regexp]
      def initialize(regexp)
        @regexp = regexp
      end

      # @param text [String]
      # @return [Array<Array(Integer, Integer)>]
      # @raise [InvalidInputError] when it takes longer than {TIME_LIMIT}
      def places(text)
        found = []
        Timeout.timeout(TIME_LIMIT) do
          text.scan(@regexp) do
            match = Regexp.last_match
            found << [match.begin(0), match.end(0)] unless match[0].empty?
          end
        end
        found
      rescue Timeout::Error
        raise InvalidInputError, "the pattern #{@regexp.inspect} took longer than #{TIME_LIMIT} s on a text of " \
                                 "#{text.size} characters: write it without nested repetition, or without " \
                                 "lookaround and backreferences, so that it is searched in linear time"
      end
    end

    # @param regexp [Regexp]
    # @return [TextPattern, Backtracking]
    def self.for(regexp)
      _compile(RegexSyntax.translate(regexp, search: true))
    rescue InvalidInputError
      Backtracking.new(regexp)
    end

    # @param text [String]
    # @return [Array<Array(Integer, Integer)>] start and end of each match in characters
    def places(text)
      _find(text)
    end
  end
end
