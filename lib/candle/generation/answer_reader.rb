# frozen_string_literal: true

module Candle
  # Reads an answer as it comes: what of it is reasoning, and what is text.
  #
  # @api private
  class AnswerReader
    # @return [Boolean] whether the prompt has opened reasoning
    attr_reader :opened

    # @return [Integer] how many tokens the reasoning has
    attr_reader :reasoning_tokens

    # @param tokenizer [Tokenizer]
    # @param format [ReasoningFormat, nil] nil for models whose answer is all text
    # @param marks [Hash{Integer => String}] control tokens to show in the text
    # @param opened [Boolean]
    def initialize(tokenizer, format, marks, opened: false)
      @tokenizer = tokenizer
      @marks = marks
      @splitter = format&.splitter(open: opened)
      @marked = MarkedText.new(tokenizer, marks)
      @texts = { reasoning: +"", text: +"" }
      @opened = opened
      @reasoning_tokens = 0
    end

    # @return [Boolean] whether the answer is within reasoning
    def reasoning?
      !@splitter.nil? && @splitter.reasoning?
    end

    # @return [String, nil] the reasoning so far; nil where there is none
    def reasoning
      @texts[:reasoning].empty? ? nil : @texts[:reasoning]
    end

    # @return [String] the text so far
    def text
      @texts[:text]
    end

    # @param piece [String] what the engine says of one more token
    # @yieldreturn [Array<Integer>] the tokens of the run so far
    # @return [Array<Array(Symbol, String)>] parts of the answer with their kind
    def push(piece, &ids)
      within = reasoning?
      parts = read(@marked.push(piece, &ids))
      @reasoning_tokens += 1 if within || reasoning?
      parts
    end

    # What is written for the model, which is part of the answer.
    #
    # @param text [String]
    # @param tokens [Integer] how many it has
    # @return [Array<Array(Symbol, String)>]
    def insert(text, tokens)
      @reasoning_tokens += tokens
      @marked = MarkedText.new(@tokenizer, @marks)
      read(text)
    end

    # The run goes on with another one.
    #
    # @param ids [Array<Integer>] the tokens of the run
    # @return [Array<Array(Symbol, String)>]
    def turn(ids)
      parts = read(@marked.finish("", ids))
      @marked = MarkedText.new(@tokenizer, @marks)
      parts
    end

    # @param ids [Array<Integer>] all tokens of the run
    # @return [Array<Array(Symbol, String)>]
    def finish(ids)
      parts = read(@marked.finish("", ids))
      parts += kept(@splitter.finish) if @splitter
      parts
    end

    # The whole answer at once, token by token as if it had been followed.
    #
    # @param ids [Array<Integer>] the tokens of a run that is over
    # @param pieces [Array<String>] what each of them added to the text
    # @return [void]
    def read_all(ids, pieces)
      pieces.each_with_index { |piece, index| push(piece) { ids.first(index + 1) } }
      finish(ids)
    end

    private

    def read(text)
      return [] if text.empty?

      kept(@splitter ? @splitter.push(text) : [[:text, text]])
    end

    def kept(parts)
      parts.each { |kind, text| @texts[kind] << text }
    end
  end
end
