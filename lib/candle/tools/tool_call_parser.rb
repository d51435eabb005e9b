# frozen_string_literal: true

require "json"

module Candle
  # Finds tool calls in what a model wrote, in the forms that models are trained to: `<tool_call>{...}</tool_call>`
  # (Hermes, Qwen), `[TOOL_CALLS] [{...}]` (Mistral), `<|python_tag|>{...}` (Llama 3),
  # `<function=name>{...}</function>`, JSON in a code fence, or nothing but JSON. Whatever isn't a call stays text;
  # nothing raises.
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

    # Where calls stand; the last group is the call, as JSON.
    PATTERNS = [
      %r{<tool_call>\s*(.*?)\s*(?:</tool_call>|\z)}m,
      %r{<function=(?<name>[\w.-]+)>\s*(?<call>.*?)\s*(?:</function>|\z)}m,
      /\[TOOL_CALLS\]\s*(?<name>[\w.-]+)\s*(?:\[ARGS\])?\s*(?<call>\{.*)\z/m,
      /\[TOOL_CALLS\]\s*(.*)\z/m,
      /<\|python_tag\|>\s*(.*?)(?:<\|eo[mt]_id\|>|\z)/m,
      /```(?:json|tool_call|tool_code)?\s*\n(.*?)\s*(?:```|\z)/m
    ].freeze

    DEFAULT_PATTERN = PATTERNS.first

    # @return [Regexp, nil] the one pattern to look for; nil looks for all known forms
    attr_reader :pattern

    # @param text [String]
    # @param available_tools [Array<Tool>] when there are any, calls of others do not count
    # @return [ParseResult]
    def self.parse(text, available_tools: [])
      new.parse(text, available_tools: available_tools)
    end

    # @param pattern [Regexp, nil] for models with a form of their own; its last group is the call, as JSON
    def initialize(pattern: nil)
      @pattern = pattern
    end

    # @param text [String]
    # @param available_tools [Array<Tool>]
    # @return [ParseResult]
    def parse(text, available_tools: [])
      text = text.to_s.scrub
      calls, rest = find(text)
      names = available_tools.map(&:name)
      calls = calls.select { |call| names.empty? || names.include?(call.name) }.uniq
      rest = rest.strip
      ParseResult.new(tool_calls: calls, text_response: rest.empty? ? nil : rest)
    end

    private

    def find(text)
      (pattern ? [pattern] : PATTERNS).each do |candidate|
        calls, rest = extract(text, candidate)
        return [calls, rest] if calls.any?
      end
      calls = pattern ? [] : calls_in(text)
      calls.any? ? [calls, ""] : [[], text]
    end

    # Takes the places out of the text that are calls, and leaves the others in it.
    def extract(text, candidate)
      calls = []
      rest = text.gsub(candidate) do |place|
        match = Regexp.last_match
        name = match.named_captures["name"]
        found = name ? named_call(name, match[:call]) : calls_in(match[match.size - 1].to_s)
        calls.concat(found)
        found.empty? ? place : ""
      end
      [calls, rest]
    end

    def named_call(name, json)
      arguments = read(json)
      arguments.is_a?(Hash) ? [ToolCall.new(name: name, arguments: arguments)] : []
    end

    # One call, an Array of calls, or calls separated by semicolons or line breaks.
    def calls_in(json)
      value = read(json)
      values = value.nil? ? json.split(/;\s*(?=\{)|\n+(?=\{)/).map { |part| read(part) } : [value]
      values = values.flat_map { |one| one.is_a?(Hash) && one["tool_calls"].is_a?(Array) ? one["tool_calls"] : one }
      calls = values.map { |one| call(one) }
      calls.all? ? calls : []
    end

    def call(value)
      return unless value.is_a?(Hash)

      inner = value["function"].is_a?(Hash) ? value["function"] : value
      name = inner["name"]
      arguments = arguments_of(inner)
      return unless name.is_a?(String) && !name.empty? && arguments.is_a?(Hash)

      ToolCall.new(name: name, arguments: arguments, id: value["id"]&.to_s)
    end

    # Some models write them as JSON in a String, or null for none.
    def arguments_of(value)
      key = %w[arguments parameters].find { |candidate| value.key?(candidate) } or return
      arguments = value[key]
      arguments.is_a?(String) ? read(arguments) : arguments || {}
    end

    # Tolerates what small models do most: a comma before a closing bracket, and text behind the value.
    def read(json)
      [json, json.gsub(/,(?=\s*[}\]])/, ""), json[/\A.*[}\]]/m].to_s].uniq.each do |text|
        return JSON.parse(text, max_nesting: 64)
      rescue JSON::ParserError
        next
      end
      nil
    end
  end
end
