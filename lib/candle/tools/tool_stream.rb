# frozen_string_literal: true

module Candle
  # Splits an answer that comes piece by piece into text that can be shown at once and what may be the call of a
  # tool, which can't be read before it is whole.
  #
  # @api private
  class ToolStream
    # How calls begin, see {ToolCallParser::PATTERNS}.
    MARKS = ["<tool_call>", "<function=", "[TOOL_CALLS]", "<|python_tag|>", "```"].freeze
    private_constant :MARKS

    # @param demanded [Boolean] whether the whole answer is a call
    def initialize(demanded: false)
      @held = +""
      @holding = demanded
      @begun = false
    end

    # @param piece [String]
    # @return [String] what can be shown
    def push(piece)
      @held << piece
      return "" if @holding || bare_json?

      shown = @held.slice!(0, safe_length)
      @begun ||= !shown.strip.empty?
      shown
    end

    # @return [String] what was held back and turned out not to be a call
    def rest
      @held.slice!(0..)
    end

    private

    # An answer that is nothing but JSON is a call too.
    def bare_json?
      return false if @begun

      @holding = @held.lstrip.start_with?("{", "[")
    end

    # How much of the text comes before a mark, or before what may become one.
    def safe_length
      if (start = MARKS.filter_map { |mark| @held.index(mark) }.min)
        @holding = true
        return start
      end
      longest = [MARKS.map(&:size).max - 1, @held.size].min
      pending = longest.downto(1).find { |size| MARKS.any? { |mark| mark.start_with?(@held[-size, size]) } }
      @held.size - pending.to_i
    end
  end
end
