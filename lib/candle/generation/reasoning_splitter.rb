# frozen_string_literal: true

module Candle
  # Splits an answer that comes piece by piece into reasoning and text. However the answer is cut, the parts add up to
  # the same.
  #
  # White space around reasoning is left out. A text without reasoning stays as it is.
  #
  # @api private
  class ReasoningSplitter
    include AnswerSplitter

    # @param format [ReasoningFormat]
    # @param open [Boolean] whether the prompt has opened reasoning
    def initialize(format, open: false)
      @format = format
      @held = +""
      @state = open ? :reasoning : :start
      @begun = false
      @blocks = 0
    end

    # @return [Array<Array(Symbol, String)>] what was held back
    def finish
      rest = @held.slice!(0..)
      case @state
      when :reasoning then joined([[:reasoning, rest.rstrip]])
      when :after then []
      else joined([[:text, without_wrappers(rest)]])
      end
    end

    private

    # One change of state; false when more text is needed first.
    def advance(parts)
      case @state
      when :start then start
      when :reasoning then reason(parts)
      when :after then after
      else tell(parts)
      end
    end

    # Whether the answer begins with reasoning.
    def start
      text = @held.lstrip
      if text.start_with?(@format.open)
        begin_reasoning(@held.size - text.size + @format.open.size)
      elsif @format.open.start_with?(text)
        false
      else
        @state = :text
      end
    end

    def begin_reasoning(length)
      @held.slice!(0, length)
      @begun = false
      @state = :reasoning
    end

    def reason(parts)
      if (at = @held.index(@format.close))
        parts << block(@held.slice!(0, at).rstrip)
        @held.slice!(0, @format.close.size)
        @blocks += 1
        @state = :after
      else
        certain = @held[0, @held.size - pending([@format.close])].rstrip.size
        parts << block(@held.slice!(0, certain))
        false
      end
    end

    # A further block of reasoning is a paragraph of its own.
    def block(text)
      unless @begun
        text = text.lstrip
        @begun = !text.empty?
        text = "\n\n#{text}" if @begun && @blocks.positive?
      end
      [:reasoning, text]
    end

    # Behind reasoning: white space is left out, and more reasoning may follow.
    def after
      @held.lstrip!
      return false if @held.empty?
      return begin_reasoning(@format.open.size) if @held.start_with?(@format.open)
      return false if @format.open.start_with?(@held)

      @format.wrappers.each do |mark|
        return !@held.slice!(0, mark.size).nil? if @held.start_with?(mark)
        return false if mark.start_with?(@held)
      end
      @state = :text
    end

    def tell(parts)
      marks = @format.anywhere? ? [@format.open, *@format.wrappers] : @format.wrappers
      mark = marks.select { |candidate| @held.include?(candidate) }.min_by { |candidate| @held.index(candidate) }
      unless mark
        parts << [:text, @held.slice!(0, @held.size - pending(marks))]
        return false
      end

      parts << [:text, @held.slice!(0, @held.index(mark))]
      return begin_reasoning(mark.size) if mark == @format.open

      @held.slice!(0, mark.size)
    end

    def without_wrappers(text)
      @format.wrappers.inject(text) { |rest, mark| rest.gsub(mark, "") }
    end
  end
end
