# frozen_string_literal: true

require "json"
require "strscan"

module Candle
  # JSON that may not be whole yet.
  #
  # @api private
  module JsonCut
    STRING = /"(?>[^"\\]+|\\.)*"/m
    SCALAR = /-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null/
    private_constant :STRING, :SCALAR

    module_function

    # Goes past one value.
    #
    # @param scanner [StringScanner]
    # @return [Symbol] `:whole`, `:cut` where the text ends before it, `:bad` for what is not a value
    def skip(scanner)
      return :whole if scanner.skip(STRING)
      return container(scanner) if scanner.check(/[{\[]/)
      return scanner.terminate && :cut if scanner.check(/"/) || scanner.check(/[-+.\da-zE]*\z/)

      scanner.skip(SCALAR) ? :whole : :bad
    end

    # Tolerates what small models do most: a comma before a closing bracket.
    #
    # @param json [String]
    # @return [Object, nil] nil for what is not JSON
    def parse(json)
      [json, json.gsub(/,(?=\s*[}\]])/, "")].uniq.each do |text|
        return JSON.parse(text, max_nesting: 64)
      rescue JSON::ParserError
        next
      end
      nil
    end

    # One call: an object with a name and arguments, which some models write as JSON in a text, or null.
    #
    # @param scanner [StringScanner] at the object
    # @param strict [Boolean] whether an object without arguments is something else
    # @return [Array] as {.skip} says, and the call where there is one, or several in a field `tool_calls`
    def call(scanner, strict: false)
      start = scanner.pos
      fields, state = fields(scanner)
      return [state, partial(fields)] unless state == :whole

      value = parse(scanner.string.byteslice(start...scanner.pos))
      return [:bad, nil] unless value.is_a?(Hash)

      found = several(value["tool_calls"], strict) || [whole(value, fields, strict)]
      found.any? && found.all? ? [:whole, found] : [:bad, nil]
    end

    def several(list, strict)
      list.is_a?(Array) ? list.map { |one| one.is_a?(Hash) && whole(one, {}, strict) } : nil
    end

    # @return [Array(Hash, Symbol)] the raw values of an object's fields
    def fields(scanner)
      found = {}
      scanner.skip(/\{/)
      loop do
        scanner.skip(/[\s,]+/)
        return [found, :whole] if scanner.skip(/\}/)

        key = scanner.scan(STRING) or return [found, scanner.check(/"|\z/) ? :cut : :bad]
        scanner.skip(/\s*:\s*/) or return [found, scanner.check(/\s*\z/) ? :cut : :bad]
        start = scanner.pos
        state = skip(scanner)
        found[JSON.parse(key)] = [scanner.string.byteslice(start...scanner.pos), state] if state != :bad
        return [found, state] unless state == :whole
      end
    rescue JSON::ParserError
      [found, :bad]
    end

    # A call whose arguments have begun, where its name came before.
    def partial(fields)
      name, state = value_of(fields, %w[name tool_name])
      json, = value_of(fields, %w[arguments parameters])
      return unless state == :whole && json&.start_with?("{") && name.start_with?('"')

      ToolFormat::Partial.new(name: JSON.parse(name), json: json)
    end

    def whole(value, fields, strict)
      inner = value["function"].is_a?(Hash) ? value["function"] : value
      name = inner["name"] || inner["tool_name"]
      key = %w[arguments parameters].find { |candidate| inner.key?(candidate) }
      arguments = arguments(inner, key, strict)
      return unless name.is_a?(String) && !name.empty? && arguments.is_a?(Hash)

      ToolFormat::Partial.new(name: name, json: as_written(fields[key]) || JSON.generate(arguments),
                              arguments: arguments, id: (value["id"] || value["tool_call_id"])&.to_s)
    end

    def arguments(inner, key, strict)
      unless key
        named = (inner.keys - %w[name tool_name id type tool_call_id]).empty?
        return named && !strict ? {} : nil
      end

      inner[key].is_a?(String) ? parse(inner[key]) : inner[key] || {}
    end

    def as_written(field)
      raw, = field
      raw if raw&.start_with?("{") && valid?(raw)
    end

    def valid?(json)
      JSON.parse(json, max_nesting: 64)
      true
    rescue JSON::ParserError
      false
    end

    def value_of(fields, names)
      names.filter_map { |name| fields[name] }.first
    end

    def container(scanner)
      depth = 0
      loop do
        scanner.skip(/[^"{}\[\]]+/)
        if scanner.skip(/[{\[]/) then depth += 1
        elsif scanner.skip(/[}\]]/) then depth -= 1
        elsif !scanner.skip(STRING)
          scanner.terminate
          return :cut
        end
        return :whole if depth.zero?
      end
    end
    private_class_method :several, :fields, :partial, :whole, :arguments, :as_written, :valid?, :value_of, :container
  end
end
