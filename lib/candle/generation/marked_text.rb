# frozen_string_literal: true

module Candle
  # The text of a run with the control tokens in it that a format is made of. The engine leaves control tokens out of
  # texts; here some of them are put back where they stand.
  #
  # @api private
  class MarkedText
    # @param tokenizer [Tokenizer]
    # @param tokens [Array<String>] what a format is made of
    # @return [Hash{Integer => String}] those of them that texts leave out
    def self.marks(tokenizer, tokens)
      tokens.uniq.filter_map do |token|
        id = tokenizer.token_to_id(token)
        [id, token] if id && tokenizer.decode([id]).empty?
      end.to_h
    end

    # @param tokenizer [Tokenizer]
    # @param marks [Hash{Integer => String}]
    def initialize(tokenizer, marks)
      @tokenizer = tokenizer
      @marks = marks
      @seen = 0
      @shown = 0
      @waiting = []
    end

    # @param piece [String] what the engine says of one more token; empty for control tokens
    # @yieldreturn [Array<Integer>] the tokens so far
    # @return [String] the same with marks
    def push(piece)
      return piece if @marks.empty?

      find(yield) if piece.empty?
      text = placed(piece)
      text << due.to_s
    end

    # @param rest [String] what the engine says at the end
    # @param ids [Array<Integer>] all tokens
    # @return [String] the same with all marks that were not shown
    def finish(rest, ids)
      return rest if @marks.empty?

      find(ids)
      placed(rest) << @waiting.map(&:last).join.tap { @waiting.clear }
    end

    private

    # Notes where in the text new marks stand. Stop sequences hold text back, which then comes before the mark.
    def find(ids)
      (@seen...ids.size).each do |index|
        mark = @marks[ids[index]]
        @waiting << [@tokenizer.decode(ids[0...index]).size, mark] if mark
      end
      @seen = ids.size
    end

    def placed(piece)
      text = +""
      while @waiting.any? && @waiting.first.first - @shown <= piece.size
        at, mark = @waiting.shift
        head = piece[0, [at - @shown, 0].max]
        piece = piece[head.size..]
        @shown += head.size
        text << head << mark
      end
      @shown += piece.size
      text << piece
    end

    # Marks that stand where the text is.
    def due
      placed("") if @waiting.any?
    end
  end
end
