# frozen_string_literal: true

module Candle
  # What splitters of answers share: pieces come in, `[kind, text]` parts come out, and `@held` keeps what may still
  # become a mark. A class that includes it has `advance(parts)`, one change of state, false when more text is needed.
  #
  # @api private
  module AnswerSplitter
    # @return [Boolean] whether the answer is within reasoning
    def reasoning?
      @state == :reasoning
    end

    # @param piece [String]
    # @return [Array<Array(Symbol, String)>] what became certain: `:reasoning` or `:text`, and how it goes on
    def push(piece)
      @held << piece
      parts = []
      loop { break unless advance(parts) }
      joined(parts)
    end

    private

    # How much of the end may become one of the marks.
    def pending(marks)
      longest = [marks.map(&:size).max.to_i - 1, @held.size].min
      longest.downto(1).find { |size| marks.any? { |mark| mark.start_with?(@held[-size, size]) } }.to_i
    end

    def joined(parts)
      parts.reject { |_, text| text.empty? }.slice_when { |one, other| one.first != other.first }
           .map { |group| [group.first.first, group.map(&:last).join] }
    end
  end
end
