# frozen_string_literal: true

require "json"

module Candle
  # Finds tool calls in what a model wrote, in the forms that models are trained to: those of Hermes and Qwen, Llama,
  # Mistral, gpt-oss, DeepSeek, GLM, Granite, Cohere, Phi-4, Kimi, MiniMax, LFM2, Functionary and Gemma, JSON in a code
  # fence, or nothing but JSON. Whatever isn't a call stays text; nothing raises.
  #
  # @example
  #   text = 'I look. <tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
  #   found = Candle::ToolCallParser.parse(text)
  #   found.tool_calls.first.arguments # => {"city"=>"Rome"}
  #   found.text_response              # => "I look."
  class ToolCallParser
    # What was found: `tool_calls`, and in `text_response` the text around them, nil when there is none.
    ParseResult = Struct.new(:text_response, :tool_calls, keyword_init: true) do
      # @return [Boolean]
      def has_tool_calls? # rubocop:disable Naming/PredicateName
        !Array(tool_calls).empty?
      end
    end

    # What {#pattern} may be for the most usual form.
    DEFAULT_PATTERN = %r{<tool_call>\s*(.*?)\s*(?:</tool_call>|\z)}m

    # @return [Regexp, nil] the one pattern to look for; nil looks for all known forms
    attr_reader :pattern

    # @param text [String]
    # @param available_tools [Array<Tool>] when there are any, calls of others do not count
    # @return [ParseResult]
    def self.parse(text, available_tools: [])
      new.parse(text, available_tools: available_tools)
    end

    # @param pattern [Regexp, nil] for models with a form of their own; its last group is the call, as JSON
    # @param formats [Array<ToolFormat>] the forms to look for where there is no pattern
    def initialize(pattern: nil, formats: ToolFormats::ALL)
      @pattern = pattern
      @formats = formats
    end

    # @param text [String]
    # @param available_tools [Array<Tool>]
    # @param schemas [Array<Tool>] tools whose parameters say what arguments are, in forms that do not
    # @return [ParseResult]
    def parse(text, available_tools: [], schemas: available_tools)
      text = text.to_s.scrub
      calls, rest = pattern ? extract(text) : find(text, available_tools, schemas)
      names = available_tools.map(&:name)
      calls = calls.select { |call| names.empty? || names.include?(call.name) }.uniq
      rest = rest.strip
      ParseResult.new(tool_calls: calls, text_response: rest.empty? ? nil : rest)
    end

    private

    def find(text, tools, schemas)
      stream = ToolStream.new(@formats, tools: schemas, known: tools.any?)
      stream.push(text)
      stream.finish
      [stream.calls, stream.calls.empty? ? text : stream.text]
    end

    # Takes the places out of the text that are calls, and leaves the others in it.
    def extract(text)
      calls = []
      rest = text.gsub(pattern) do |place|
        match = Regexp.last_match
        found = ToolStream.new([ToolFormats::BARE])
        found.push(match[match.size - 1].to_s.strip)
        found.finish
        calls.concat(found.calls)
        found.calls.empty? ? place : ""
      end
      [calls, rest]
    end
  end
end
