# frozen_string_literal: true

require "json"

module Candle
  # A form in which models write calls of tools. Subclasses are the kinds of forms; {ToolFormats} has one of them for
  # each family.
  #
  # A section of a text begins with a mark. {#read} says what is known of it so far: it is asked again as the text
  # grows, and what it has said of a call only grows too. Positions are bytes.
  #
  # @api private
  class ToolFormat
    # A call as far as it is written: its arguments as JSON so far, and as a Hash once they are whole.
    Partial = Struct.new(:name, :json, :arguments, :id, keyword_init: true) do
      # @return [ToolCall]
      def to_call
        ToolCall.new(name: name, arguments: arguments, id: id)
      end
    end

    # The calls of a section, and where it ends; nil while it goes on. One without calls may be left out of the text.
    Reading = Struct.new(:calls, :stop, :dropped, keyword_init: true)

    # @return [Symbol]
    attr_reader :name
    # @return [Array<String>] what may be control tokens in it
    attr_reader :tokens
    # @return [Array<String>] what stands around sections, and is left out of the text
    attr_reader :noise

    # @param name [Symbol]
    # @param marks [Array<String>] what a section begins with
    # @param signs [Array<String>, Regexp] what a chat template of it has
    # @param tokens [Array<String>]
    # @param noise [Array<String>]
    # @param first [Boolean] whether a section is only one where nothing stands before it
    def initialize(name, marks:, signs: marks, tokens: [], noise: [], first: false)
      @name = name
      @marks = marks
      @signs = signs
      @tokens = tokens
      @noise = noise
      @first = first
    end

    # @param _tools [Array<Tool>]
    # @return [Array<String>] what a section begins with
    def marks(_tools = [])
      @marks
    end

    # @return [Boolean] whether a section is only one where nothing stands before it
    def first?
      @first
    end

    # @param templates [Array<String>]
    # @return [Boolean] whether chat templates name it
    def named?(templates)
      templates.any? do |text|
        @signs.is_a?(Regexp) ? text.match?(@signs) : @signs.any? { |sign| text.include?(sign) }
      end
    end

    # @yieldparam token [String]
    # @yieldreturn [Integer, nil] its id in the vocabulary
    # @return [Boolean] whether the vocabulary has tokens for it
    def known?
      @tokens.any? && !yield(@tokens.first).nil?
    end

    # @param _text [String] a section from its mark on
    # @param _tools [Array<Tool>]
    # @param final [Boolean] whether no more text comes
    # @return [Reading, nil] nil for what is not a call
    def read(_text, _tools, final: false)
      raise NotImplementedError, "#{self.class} reads nothing (final: #{final})"
    end

    # @param _tools [Array<Tool>]
    # @return [Array(String, String), nil] what begins a call, and a grammar for what follows; nil where there is none
    def guarded(_tools)
      nil
    end

    # @param _tools [Array<Tool>]
    # @return [String, nil] a grammar in Lark's notation for a call; nil where there is none
    def grammar(_tools)
      nil
    end
  end
end
