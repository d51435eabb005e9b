# frozen_string_literal: true

require "json"

module Candle
  # What a generated text must match: a JSON schema, a regular expression, or a grammar. Independent of any model.
  #
  # @example
  #   constraint = Candle::StructuredConstraint.from_regex(/yes|no/)
  #   llm = Candle::LLM.from_pretrained("spec/fixtures/tiny/decoders/llama")
  #   llm.generate("the dog", constraint: constraint).match?(/\A(yes|no)\z/) # => true
  class StructuredConstraint
    SCALARS = %w[string number boolean null].freeze

    # What a member of a Struct may be when its class says nothing: a scalar, or an Array of scalars.
    MEMBER = { "anyOf" => [{ "type" => SCALARS },
                           { "type" => "array", "items" => { "type" => SCALARS } }] }.freeze

    # What `whitespace:` takes: one space after `:` and `,` and none elsewhere, or a few between any two tokens.
    WHITESPACE = %i[compact flexible].freeze

    # @return [Symbol] `:schema`, `:flexible_schema`, `:regex` or `:lark`
    attr_reader :kind
    # @return [String] the schema as JSON, the regular expression in the engine's syntax, or the grammar
    attr_reader :source
    # @return [Class, nil] the Struct or Data class that {#parse} makes instances of
    attr_reader :type

    class << self
      # A class with a method `json_schema` says itself what its members are.
      #
      # @example
      #   format = { type: "json_schema", json_schema: { name: "answer", schema: { type: "boolean" } } }
      #   Candle::StructuredConstraint.from_schema(format).source # => "{\"type\":\"boolean\"}"
      #
      # @param schema [Hash, String, Class, #to_json_schema] a JSON schema, the same as JSON, a Struct or Data class, an
      #   object that answers `to_json_schema`, or a `response_format` as OpenAI's clients write it
      # @param whitespace [Symbol] `:compact` has one space after `:` and `,` and none elsewhere; `:flexible` lets the
      #   model break lines and indent
      # @return [StructuredConstraint]
      # @raise [InvalidInputError] when it is none of these
      def from_schema(schema, _tokenizer = nil, whitespace: :compact)
        flexible = Arguments.choice(whitespace, "whitespace", WHITESPACE) == :flexible
        kind = flexible ? :flexible_schema : :schema
        schema = schema.to_json_schema if Arguments.answers?(schema, :to_json_schema)
        case schema
        when Hash, true then new(kind, Arguments.json(bare(schema), "the schema"))
        when Class then new(kind, Arguments.json(class_schema(schema), "the schema"), type: schema)
        else new(kind, TextInput.utf8(schema, "schema"))
        end
      end

      # @param pattern [Regexp, String] for the text as a whole
      # @return [StructuredConstraint]
      # @raise [InvalidInputError] for lookaround, backreferences and other things that can't be followed
      def from_regex(pattern, _tokenizer = nil)
        new(:regex, RegexSyntax.translate(pattern))
      end

      # A constraint needs no model; this form has one for the sake of 1.8.
      #
      # @param schema [Hash, String, Class]
      # @param _model_id [String]
      # @return [StructuredConstraint]
      def from_schema_with_model(schema, _model_id)
        Deprecation.warn("StructuredConstraint.from_schema_with_model", "StructuredConstraint.from_schema")
        from_schema(schema)
      end

      # @param pattern [Regexp, String]
      # @param _model_id [String]
      # @return [StructuredConstraint]
      # @see from_schema_with_model
      def from_regex_with_model(pattern, _model_id)
        Deprecation.warn("StructuredConstraint.from_regex_with_model", "StructuredConstraint.from_regex")
        from_regex(pattern)
      end

      # @param grammar [String] in Lark's notation, with a rule `start`
      # @return [StructuredConstraint]
      def from_grammar(grammar)
        new(:lark, TextInput.utf8(grammar, "grammar"))
      end

      # @param value [StructuredConstraint, Hash, Class, Regexp, nil] as `constraint:` takes it
      # @return [StructuredConstraint, nil]
      # @raise [ArgumentError] for anything else
      def wrap(value)
        case value
        when StructuredConstraint, nil then value
        when Hash, Class then from_schema(value)
        when Regexp then from_regex(value)
        else
          raise ArgumentError, "constraint must be a StructuredConstraint, a Hash (JSON schema), a Struct class or a " \
                               "Regexp, not #{Arguments.shown(value)}"
        end
      end

      private

      # The schema inside of what OpenAI's clients and schema libraries wrap around one.
      def bare(schema)
        return schema unless schema.is_a?(Hash)

        field = ->(name) { schema.fetch(name) { schema[name.to_s] } }
        type = field[:type]
        case Symbol === type ? type.to_s : type
        when "json_schema" then field[:json_schema].is_a?(Hash) ? bare(field[:json_schema]) : field[:schema]
        when "json_object" then { "type" => "object" }
        when nil then field[:name].is_a?(String) && field[:schema].is_a?(Hash) ? field[:schema] : schema
        else schema
        end
      end

      def class_schema(type)
        unless type.respond_to?(:members)
          raise InvalidInputError,
                "schema must be a Hash, a JSON String, or a Struct or Data class, not #{Arguments.shown(type)}"
        end
        return type.json_schema if type.respond_to?(:json_schema)

        names = type.members.map(&:to_s)
        { "type" => "object", "properties" => names.to_h { |name| [name, MEMBER] }, "required" => names }
      end
    end

    # @api private
    def initialize(kind, source, type: nil)
      @kind = kind
      @source = source.dup.freeze
      @type = type
      freeze
    end

    # @param text [String] a text that follows a schema
    # @return [Object] what it says: a Hash with String keys, or an instance of {#type}
    def parse(text)
      value = JSON.parse(text, max_nesting: false)
      type ? instance(value) : value
    end

    # @return [Boolean]
    def ==(other)
      other.is_a?(StructuredConstraint) && [kind, source, type] == [other.kind, other.source, other.type]
    end

    alias eql? ==

    # @return [Integer]
    def hash
      [kind, source, type].hash
    end

    # @return [String] one line
    def inspect
      "#<Candle::StructuredConstraint #{kind} #{source.size > 60 ? "#{source[0, 60]}..." : source}>"
    end

    private

    def instance(value)
      values = type.members.to_h { |name| [name, value[name.to_s]] }
      positional = type < Struct && !type.keyword_init?
      positional ? type.new(*values.values) : type.new(**values)
    end
  end
end
