# frozen_string_literal: true

module Candle
  # Checks values against JSON schemas, such as the arguments of a tool call against the tool's parameters.
  #
  # @api private
  class JsonSchema
    TYPES = {
      "null" => ->(value) { value.nil? }, "boolean" => ->(value) { [true, false].include?(value) },
      "string" => ->(value) { value.is_a?(String) }, "array" => ->(value) { value.is_a?(Array) },
      "object" => ->(value) { value.is_a?(Hash) }, "number" => ->(value) { value.is_a?(Numeric) },
      "integer" => ->(value) { value.is_a?(Integer) || (value.is_a?(Float) && value.finite? && (value % 1).zero?) }
    }.freeze

    # For each keyword the class it speaks of, and when a value passes.
    LIMITS = {
      "minimum" => [Numeric, ->(value, limit) { value >= limit }],
      "maximum" => [Numeric, ->(value, limit) { value <= limit }],
      "exclusiveMinimum" => [Numeric, ->(value, limit) { value > limit }],
      "exclusiveMaximum" => [Numeric, ->(value, limit) { value < limit }],
      "multipleOf" => [Numeric, ->(value, limit) { (value.rationalize % limit.rationalize).zero? }],
      "minLength" => [String, ->(value, limit) { value.length >= limit }],
      "maxLength" => [String, ->(value, limit) { value.length <= limit }],
      "pattern" => [String, ->(value, limit) { value.match?(Regexp.new(limit)) }],
      "minItems" => [Array, ->(value, limit) { value.size >= limit }],
      "maxItems" => [Array, ->(value, limit) { value.size <= limit }],
      "uniqueItems" => [Array, ->(value, limit) { !limit || value.uniq.size == value.size }],
      "minProperties" => [Hash, ->(value, limit) { value.size >= limit }],
      "maxProperties" => [Hash, ->(value, limit) { value.size <= limit }],
      "const" => [BasicObject, ->(value, limit) { value == limit }],
      "enum" => [BasicObject, ->(value, limit) { limit.include?(value) }]
    }.freeze

    # @param schema [Hash, Boolean] with String or Symbol keys
    def initialize(schema)
      @root = stringified(schema)
    end

    # @param value [Object] as JSON.parse gives it
    # @return [Array<String>] what is wrong with it, nothing when it is valid
    def errors(value)
      check(@root, value, "arguments")
    end

    private

    def stringified(value)
      case value
      when Hash then value.to_h { |key, inner| [key.to_s, stringified(inner)] }
      when Array then value.map { |inner| stringified(inner) }
      when Symbol then value.to_s
      else value
      end
    end

    def check(schema, value, place)
      return [] if schema == true || schema.nil?
      return ["#{place} must not be given"] if schema == false

      errors = type_errors(schema, value, place) + limit_errors(schema, value, place) +
               combined_errors(schema, value, place)
      errors.concat(object_errors(schema, value, place)) if value.is_a?(Hash)
      errors.concat(array_errors(schema, value, place)) if value.is_a?(Array)
      errors
    end

    def type_errors(schema, value, place)
      types = Array(schema["type"])
      return [] if types.empty? || types.any? { |type| TYPES[type]&.call(value) }

      ["#{place} must be of type #{types.join(" or ")}, not #{Arguments.shown(value)}"]
    end

    def limit_errors(schema, value, place)
      (schema.keys & LIMITS.keys).filter_map do |keyword|
        type, passes = LIMITS[keyword]
        next if !(BasicObject == type || value.is_a?(type)) || passes.call(value, schema[keyword])

        "#{place} must have #{keyword} #{schema[keyword].inspect}, not #{Arguments.shown(value)}"
      end
    end

    def combined_errors(schema, value, place)
      errors = Array(schema["allOf"]).flat_map { |part| check(part, value, place) }
      errors.concat(check(resolve(schema["$ref"]), value, place)) if schema.key?("$ref")
      errors << "#{place} matches what it must not" if schema.key?("not") && check(schema["not"], value, place).empty?
      { "anyOf" => 1.., "oneOf" => 1..1 }.each do |keyword, wanted|
        next unless schema.key?(keyword)

        matching = schema[keyword].count { |part| check(part, value, place).empty? }
        errors << "#{place} matches #{matching} alternatives of #{keyword}" unless wanted.cover?(matching)
      end
      errors
    end

    def object_errors(schema, value, place)
      missing = Array(schema["required"]).map(&:to_s) - value.keys
      missing.map { |name| "#{place}.#{name} is missing" } +
        value.flat_map { |name, inner| member_errors(schema, name, inner, "#{place}.#{name}") }
    end

    def member_errors(schema, name, value, place)
      patterns = schema.fetch("patternProperties", {}).select { |pattern, _| name.match?(Regexp.new(pattern)) }.values
      parts = [schema.dig("properties", name), *patterns].reject(&:nil?)
      parts = [schema.fetch("additionalProperties", true)] if parts.empty?
      parts.flat_map { |part| check(part, value, place) }
    end

    def array_errors(schema, value, place)
      first = schema["prefixItems"] || (schema["items"].is_a?(Array) ? schema["items"] : [])
      rest = schema["items"].is_a?(Array) ? schema["additionalItems"] : schema["items"]
      value.each_with_index.flat_map do |inner, index|
        check(index < first.size ? first[index] : rest, inner, "#{place}[#{index}]")
      end
    end

    # Only references into the schema itself; an unknown one forbids nothing.
    def resolve(reference)
      steps = reference.to_s.delete_prefix("#").split("/").reject(&:empty?)
      steps.reduce(@root) do |schema, step|
        step = step.gsub("~1", "/").gsub("~0", "~")
        schema.is_a?(Array) ? schema[Integer(step, 10, exception: false) || schema.size] : schema&.dig(step)
      end
    end
  end
end
