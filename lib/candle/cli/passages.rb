# frozen_string_literal: true

module Candle
  class CLI
    # Splits texts into passages: paragraphs, joined while they are short and cut where they are long.
    #
    # @api private
    module Passages
      # Characters of a passage, about.
      SIZE = 800
      private_constant :SIZE

      module_function

      # @param text [String]
      # @return [Array<Array(Integer, Integer)>] where passages begin, and their lengths, in characters
      def of(text)
        places = []
        text.to_enum(:scan, /\S(?:.*\S)?(?:\n(?![ \t]*\n).*\S)*/).each { places << Regexp.last_match.offset(0) }
        joined(places.flat_map { |first, last| cut(text, first, last) }).map { |first, last| [first, last - first] }
      end

      # A long paragraph ends at the last space before the limit.
      def cut(text, first, last)
        parts = []
        while last - first > SIZE
          stop = text.rindex(/\s/, first + SIZE) || 0
          stop = first + SIZE if stop <= first
          parts << [first, stop]
          first = stop
        end
        parts << [first, last]
      end

      def joined(places)
        places.each_with_object([]) do |(first, last), found|
          if found.any? && last - found.last.first <= SIZE
            found.last[1] = last
          else
            found << [first, last]
          end
        end
      end
      private_class_method :cut, :joined
    end
  end
end
