# frozen_string_literal: true

module Candle
  module ToolFormats
    # Grammars of calls whose arguments are written one by one, between tags or as source code has them. Texts are
    # written as they are, other values as JSON.
    #
    # @api private
    class ArgumentGrammar < Grammar
      # A schema that such a form has no grammar for.
      class Unwritable < StandardError; end

      # What the parameters of a tool may say, and what the schema of a text may.
      KNOWN = %w[type properties required additionalProperties description title $schema $defs definitions].freeze
      TEXT = %w[type description title default examples enum const minLength maxLength].freeze
      # What references may begin with: the rest of the parameters does not stand beside an argument.
      DEFINITIONS = %r{\A#/(\$defs|definitions)/}
      # Optional arguments of a call that needs none are told apart by which comes first.
      MOST = 12
      private_constant :Unwritable, :KNOWN, :TEXT, :DEFINITIONS, :MOST

      # @param opening [String] what stands before the name
      # @param named [String] what follows it
      # @param before [String] what stands before a key
      # @param between [String, Proc] what stands between it and the value; a Proc is given whether that is a text
      # @param closing [Array(String, String)] what ends a value, and what follows
      # @param ending [String] what ends the call
      # @param tokens [Array<String>] what may be a control token in those
      # @return [String, nil] for arguments between tags; nil where a schema has no such grammar
      def tagged_calls(opening:, named:, before:, between:, closing:, ending:, tokens: [])
        calls(opening, named, ending, tokens) do |tool, index|
          properties(tool).each_with_index.map do |(key, schema), place|
            rule = "p#{index}_#{place}"
            text = schema["type"] == "string"
            middle = between.respond_to?(:call) ? between.call(text) : between
            add(rule, [*spelled(before, tokens), JSON.generate(key), *spelled(middle, tokens),
                       *tagged(rule, tool, schema, closing)])
            required(tool).include?(key) ? rule : "#{rule}?"
          end
        end
      end

      # @param opening [String]
      # @param brackets [Array(String, String)] what stands around the arguments
      # @param assigned [String] what stands between a key and its value
      # @param comma [String] what stands between arguments
      # @param ending [String]
      # @param quote [String, nil] what stands around texts; nil writes them as JSON
      # @param python [Boolean] whether truth is `True` and `False`
      # @param tokens [Array<String>]
      # @return [String, nil] for arguments as source code has them
      def loose_calls(opening:, brackets:, assigned:, comma:, ending:, quote: nil, python: false, tokens: [])
        calls(opening, brackets.first, "#{brackets.last}#{ending}", tokens) do |tool, index|
          rules = properties(tool).each_with_index.to_h do |(key, schema), place|
            rule = "p#{index}_#{place}"
            add(rule, [JSON.generate("#{key}#{assigned}"), *loose(rule, tool, schema, quote, python, tokens)])
            [rule, required(tool).include?(key)]
          end
          separated(rules, JSON.generate(comma))
        end
      end

      private

      def calls(opening, named, ending, tokens)
        @rules = []
        @tools.each_with_index do |tool, index|
          add("c#{index}", [*spelled(opening, tokens), JSON.generate(tool.name), *spelled(named, tokens),
                            *yield(tool, index), *spelled(ending, tokens)])
        end
        "start: #{@tools.each_index.map { |index| "c#{index}" }.join(" | ")}\n#{@rules.join("\n")}\n"
      rescue Unwritable
        nil
      end

      def add(name, parts, attributes = "")
        @rules << "#{name}#{attributes}: #{parts.join(" ")}"
      end

      # Commas stand between arguments only. The required ones come first.
      def separated(rules, comma)
        needed, optional = rules.partition(&:last).map { |some| some.map(&:first) }
        tail = ->(some) { some.map { |rule| "(#{comma} #{rule})?" } }
        return [needed.flat_map { |rule| [comma, rule] }.drop(1), *tail.call(optional)].flatten if needed.any?
        raise Unwritable if optional.size > MOST
        return [] if optional.empty?

        choices = optional.each_index.map { |index| [optional[index], *tail.call(optional.drop(index + 1))].join(" ") }
        ["(#{choices.join(" | ")})?"]
      end

      def tagged(rule, tool, schema, (closing, behind))
        after = behind.empty? ? [] : [JSON.generate(behind)]
        return [value(rule, tool, schema), JSON.generate(closing), *after] unless schema["type"] == "string"

        words = words_of(schema)
        return ["(#{words.map { |word| JSON.generate(word) }.join(" | ")})", JSON.generate(closing), *after] if words

        # The first end tag ends the text.
        add("t#{rule}", ["/#{letters(schema)}/"], "[suffix=#{JSON.generate(closing.lstrip)}]")
        ["t#{rule}", *after]
      end

      def loose(rule, tool, schema, quote, python, tokens)
        return ['("True" | "False")'] if python && schema["type"] == "boolean" && (schema.keys & %w[enum const]).empty?
        return [value(rule, tool, schema)] unless quote && schema["type"] == "string"

        mark = spelled(quote, tokens)
        words = words_of(schema)
        inner = words ? "(#{words.map { |word| JSON.generate(word) }.join(" | ")})" : "T#{rule.upcase}"
        forbidden = Regexp.escape(quote).gsub("/", "\\/")
        add(inner, ["/#{letters(schema)}/ & ~/(.|\\n)*#{forbidden}(.|\\n)*/"]) unless words
        [*mark, inner, *mark]
      end

      # A value as JSON, beside the definitions that it may refer to.
      def value(rule, tool, schema)
        add("v#{rule}", ["%json #{json(schema.merge(parameters_of(tool).slice("$defs", "definitions")))}"])
        "v#{rule}"
      end

      # What a text may be where that is named.
      def words_of(schema)
        words = schema.key?("const") ? [schema["const"]] : schema["enum"]
        return if words.nil?
        raise Unwritable unless words.any? && words.all? { |word| word.is_a?(String) && !word.match?(/[<>\n]/) }

        words
      end

      # Line breaks around a text are not part of it, so that one of a certain length has none.
      def letters(schema)
        least = schema["minLength"].to_i
        most = schema["maxLength"]
        return "(.|\\n)*" if least.zero? && most.nil?

        "#{least.zero? ? "(.|\\n)" : "[^\\n]"}{#{least},#{most}}"
      end

      def properties(tool)
        schema = parameters_of(tool)
        found = schema["properties"] || {}
        raise Unwritable unless (schema.keys - KNOWN).empty? && (required(tool) - found.keys).empty?
        raise Unwritable unless found.each_value.all? { |property| writable?(property) } && plain_keys?(found)

        found
      end

      def plain_keys?(properties)
        properties.each_key.all? { |key| key.match?(/\A[A-Za-z_][\w-]*\z/) }
      end

      # What a value without a type is can't be told from its text.
      def writable?(property)
        return false unless property.is_a?(Hash) && property["type"] && references(property).all?(DEFINITIONS)

        property["type"] != "string" || (property.keys - TEXT).empty?
      end

      def references(schema)
        case schema
        when Hash then schema.flat_map { |key, one| key == "$ref" && one.is_a?(String) ? [one] : references(one) }
        when Array then schema.flat_map { |one| references(one) }
        else []
        end
      end

      def required(tool)
        Array(parameters_of(tool)["required"])
      end

      def parameters_of(tool)
        @parameters ||= {}
        @parameters[tool.name] ||= JSON.parse(JSON.generate(tool.parameters))
      end
    end
  end
end
