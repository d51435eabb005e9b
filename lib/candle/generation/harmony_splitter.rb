# frozen_string_literal: true

module Candle
  # Splits an answer in channels, as gpt-oss writes it, into reasoning and text as it comes: the channel `analysis` is
  # reasoning, `final` and `commentary` are text. Messages to a tool stay as they are written, with their marks.
  #
  # @api private
  class HarmonySplitter
    include AnswerSplitter

    CHANNEL = "<|channel|>"
    MESSAGE = "<|message|>"
    START = "<|start|>"
    ENDS = %w[<|end|> <|return|> <|call|>].freeze
    private_constant :CHANNEL, :MESSAGE, :START, :ENDS

    # @param open [Boolean] whether the prompt has opened reasoning
    def initialize(open: false)
      @held = +""
      @state = open ? :reasoning : :header
      @header = +""
      @reasoned = false
    end

    # @return [Array<Array(Symbol, String)>] what was held back
    def finish
      rest = @held.slice!(0..)
      kind = reasoning? ? :reasoning : :text
      # Without a header the model does not write in channels.
      rest = "" if @state == :header && rest.start_with?(CHANNEL, START)
      joined([[kind, rest]])
    end

    private

    def advance(parts)
      return header(parts) if @state == :header

      at, mark = ENDS.filter_map { |candidate| [@held.index(candidate), candidate] if @held.include?(candidate) }.min
      kind = reasoning? ? :reasoning : :text
      unless at
        parts << [kind, @held.slice!(0, @held.size - pending(ENDS))]
        return false
      end

      parts << [kind, @held.slice!(0, at)]
      @held.slice!(0, mark.size)
      parts << [:text, mark] if @state == :call
      @state = :header
    end

    # Headers are short; what has no channel is text as it is.
    def header(parts)
      unless (at = @held.index(MESSAGE))
        return false if @held.empty? || header_begun?

        @state = :text
        return true
      end

      header = @held.slice!(0, at + MESSAGE.size)
      @state = state_of(header)
      parts << [:text, header] if @state == :call
      parts << [:reasoning, "\n\n"] if reasoning? && @reasoned
      @reasoned ||= reasoning?
      true
    end

    def header_begun?
      [CHANNEL, START].any? { |mark| @held.start_with?(mark) || mark.start_with?(@held) } ||
        @held.match?(/\A\s*(to=|assistant)/)
    end

    def state_of(header)
      return :call if header.match?(/\bto=/)

      header.include?("#{CHANNEL}analysis") ? :reasoning : :text
    end
  end
end
