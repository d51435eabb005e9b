# frozen_string_literal: true

require "json"

module Candle
  module ToolFormats
    # Grammars of calls within a format: the marks as they are, the name one of the tools', the arguments valid by the
    # tool's schema.
    #
    # @api private
    class Grammar
      # How JSON is written: one space after `:` and `,` and none elsewhere.
      COMPACT = { "whitespace_flexible" => false, "item_separator" => ", ", "key_separator" => ": " }.freeze
      private_constant :COMPACT

      # What stands around a control token until its id is known.
      CONTROL = /\u{E000}([^\u{E001}]+)\u{E001}/
      private_constant :CONTROL

      # @param grammar [String] one of ours
      # @param tokenizer [Tokenizer]
      # @return [String] the same, with the ids of control tokens; tokens that are text are quoted
      def self.spell(grammar, tokenizer)
        grammar.gsub(CONTROL) do
          token = Regexp.last_match(1)
          id = tokenizer.token_to_id(token)
          id && tokenizer.decode([id]).empty? ? "<[#{id}]>" : JSON.generate(token)
        end
      end

      # @param tools [Array<Tool>]
      def initialize(tools)
        @tools = tools
      end

      # @return [Hash] a schema for a call as JSON alone
      def schema
        { "anyOf" => @tools.each_with_index.map { |tool, index| call_schema(tool, index, %w[name arguments], false) } }
      end

      # @param opening [String]
      # @param closing [String, nil]
      # @param tokens [Array<String>] what may be a control token in those
      # @param fields [Array<String>] how the name and the arguments are called
      # @param list [Boolean] whether calls stand in an Array
      # @param most [Integer] how many such an Array has at most
      # @return [String] for calls as JSON objects
      def json_calls(opening, closing, tokens: [], fields: %w[name arguments], list: false, most: 1)
        alternatives = @tools.each_with_index.map { |tool, index| call_schema(tool, index, fields, list) }
        schema = { "anyOf" => alternatives }
        schema = { "type" => "array", "items" => schema, "minItems" => 1, "maxItems" => most } if list
        parts = [*spelled("#{opening}#{"\n" if closing&.start_with?("</")}", tokens), "call",
                 *spelled("#{"\n" if closing&.start_with?("</")}#{closing}", tokens)]
        "start: #{parts.join(" ")}\ncall: %json #{json(schema)}\n"
      end

      # @param before [String] what stands before the name
      # @param between [String] what stands between it and the arguments
      # @param behind [String] what follows
      # @param tokens [Array<String>]
      # @return [String] for calls with a name before the arguments
      def named_calls(before, between, behind, tokens: [])
        rules = @tools.each_with_index.map do |tool, index|
          parts = [*spelled(before, tokens), JSON.generate(tool.name), *spelled(between, tokens), "a#{index}",
                   *spelled(behind, tokens)]
          "c#{index}: #{parts.join(" ")}\na#{index}: %json #{json(parameters(tool, ""))}\n"
        end
        "start: #{@tools.each_index.map { |index| "c#{index}" }.join(" | ")}\n#{rules.join}"
      end

      private

      # Control tokens are named by their ids, which {.spell} knows.
      def spelled(text, tokens)
        marks = tokens.sort_by { |token| -token.size }
        marks = marks.empty? ? /(?!)/ : Regexp.union(marks)
        text.split(/(#{marks.source})/).reject(&:empty?).map do |part|
          tokens.include?(part) ? "\u{E000}#{part}\u{E001}" : JSON.generate(part)
        end
      end

      def json(schema)
        JSON.generate(closed(schema).merge("x-guidance" => COMPACT))
      end

      def call_schema(tool, index, fields, list)
        place = "#{"/items" if list}/anyOf/#{index}/properties/#{fields.last}"
        { "type" => "object",
          "properties" => { fields.first => { "const" => tool.name }, fields.last => parameters(tool, place) },
          "required" => fields, "additionalProperties" => false }
      end

      def parameters(tool, place)
        return { "type" => "object", "properties" => {} } if tool.parameters.empty?

        moved(JSON.parse(JSON.generate(tool.parameters)), place)
      end

      # Objects have the properties that a schema names and no others, unless it says so.
      def closed(schema)
        case schema
        when Hash
          found = schema.transform_values { |value| closed(value) }
          found.key?("properties") ? { "additionalProperties" => false, **found } : found
        when Array then schema.map { |value| closed(value) }
        else schema
        end
      end

      # References inside a tool's parameters now start further down.
      def moved(schema, place)
        case schema
        when Hash
          schema.to_h do |key, value|
            refers = key == "$ref" && value.is_a?(String) && value.start_with?("#")
            [key, refers ? value.sub("#", "##{place}") : moved(value, place)]
          end
        when Array then schema.map { |value| moved(value, place) }
        else schema
        end
      end
    end
  end
end
