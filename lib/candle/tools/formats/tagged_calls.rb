# frozen_string_literal: true

module Candle
  module ToolFormats
    # Calls whose arguments stand between tags, one by one. What a value is comes from the tool's schema: texts are
    # taken as they are written, others as JSON.
    #
    # @api private
    class TaggedCalls < ToolFormat
      # @param header [Regexp] from the mark to the first argument, with the group `name`
      # @param opening [Regexp] what begins an argument, with the group `key`, and perhaps `text` that says whether the
      #   value is one
      # @param closing [String] what ends an argument
      # @param footer [Regexp] what ends a call
      # @param begun [Regexp] what may become a header
      # @param wrapper [String, nil] what may follow the footer
      # @param spelled [Hash, nil] how a call is written, as {ArgumentGrammar#tagged_calls} takes it
      # @param options [Hash] as {ToolFormat} takes them
      def initialize(name, header:, opening:, closing:, footer:, begun:, wrapper: nil, spelled: nil, **options)
        super(name, **options)
        @spelled = spelled
        @begun = /\A(?:#{begun.source})\z/m
        @wrapper = wrapper
        @header = header
        @opening = opening
        @closing = closing
        @footer = footer
      end

      # @see ToolFormat#grammar
      def grammar(tools)
        @spelled && ArgumentGrammar.new(tools).tagged_calls(**@spelled, tokens: tokens)
      end

      # @see ToolFormat#guarded
      def guarded(tools)
        return unless @spelled

        opening = tokens.find { |token| @spelled[:opening].start_with?(token) } or return
        rest = @spelled.merge(opening: @spelled[:opening].delete_prefix(opening))
        grammar = ArgumentGrammar.new(tools).tagged_calls(**rest, tokens: tokens)
        grammar && [opening, grammar]
      end

      # @see ToolFormat#read
      def read(text, tools, final: false)
        scanner = StringScanner.new(text)
        return (Reading.new(calls: [], stop: nil) if !final && begun?(text)) unless scanner.skip(@header)

        call = Partial.new(name: scanner[:name].strip, json: +"{")
        schema = tools.find { |tool| tool.name == call.name }&.parameters
        found = {}
        until scanner.skip(@footer)
          return unfinished(call, found, final, scanner) unless scanner.skip(/\s*/) && scanner.skip(@opening)

          open = argument(scanner, call, found, schema, final)
          return open unless open == :whole
        end
        call.json << "}"
        call.arguments = found
        Reading.new(calls: [call], stop: behind(scanner, final))
      end

      private

      # @return [Symbol, Reading, nil] `:whole`, or what is known where the text ends within
      def argument(scanner, call, found, schema, final)
        key = scanner[:key].strip
        plain = plain?(schema, key, scanner)
        value, state = value(scanner, final)
        return started(call, found, key, value, plain) if state == :cut

        add(call, found, key, plain ? value : typed(value, schema, key))
        :whole
      end

      def begun?(text)
        text.bytesize < 300 && text.match?(@begun)
      end

      def behind(scanner, final)
        here = scanner.pos
        return here unless @wrapper

        scanner.skip(/\s*/)
        return scanner.pos + @wrapper.bytesize if scanner.rest.start_with?(@wrapper)

        here if final || !@wrapper.start_with?(scanner.rest)
      end

      # The end of the text counts as the end of the call, where its arguments are whole.
      def unfinished(call, found, final, scanner)
        return Reading.new(calls: [call], stop: nil) if !final && scanner.rest_size < 300
        return unless final && scanner.eos?

        call.json << "}"
        call.arguments = found
        Reading.new(calls: [call], stop: scanner.pos)
      end

      def value(scanner, final)
        if (text = scanner.scan_until(/#{Regexp.escape(@closing)}/))
          return [text.delete_suffix(@closing).delete_prefix("\n").delete_suffix("\n"), :whole]
        end

        # What may belong to the closing tag, or to the line break before it, waits.
        [final ? nil : held(scanner.rest).delete_prefix("\n"), :cut]
      end

      def held(rest)
        longest = [@closing.size - 1, rest.size].min
        pending = longest.downto(1).find { |size| @closing.start_with?(rest[-size, size]) }.to_i
        rest[0, rest.size - pending].delete_suffix("\n")
      end

      def started(call, found, key, value, plain)
        return if value.nil?

        call.json << "#{", " if found.any?}#{JSON.generate(key)}: #{JSON.generate(value)[0...-1]}" if plain
        Reading.new(calls: [call], stop: nil)
      end

      def add(call, found, key, value)
        call.json << "#{", " if found.any?}#{JSON.generate(key)}: #{JSON.generate(value)}"
        found[key] = value
      end

      def plain?(schema, key, scanner)
        told = scanner[:text] if @opening.names.include?("text")
        told ? told == "true" : type_of(schema, key) == "string"
      end

      def typed(value, schema, key)
        parsed = JSON.parse(value, max_nesting: 64)
        parsed.is_a?(String) && type_of(schema, key).nil? ? value : parsed
      rescue JSON::ParserError
        { "True" => true, "False" => false, "None" => nil }.fetch(value, value)
      end

      def type_of(schema, key)
        properties = schema && (schema[:properties] || schema["properties"])
        about = properties && (properties[key] || properties[key.to_sym])
        about.is_a?(Hash) ? (about[:type] || about["type"])&.to_s : nil
      end
    end
  end
end
