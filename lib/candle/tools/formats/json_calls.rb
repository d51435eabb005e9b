# frozen_string_literal: true

module Candle
  module ToolFormats
    # Calls as JSON objects, alone or in an Array, after a mark.
    #
    # @api private
    class JsonCalls < ToolFormat
      # @param closing [String, nil] what ends a section
      # @param inside [Regexp] what may stand between the mark and the calls
      # @param begun [Regexp] what may become that
      # @param fields [Array<String>] how the name and the arguments are called
      # @param list [Boolean] whether models write an Array
      # @param strict [Boolean] whether an object without arguments is something else
      # @param spelled [String, nil] what a call is written after; nil is the first mark
      # @param options [Hash] as {ToolFormat} takes them
      def initialize(name, closing: nil, inside: /\s*/, begun: inside, fields: %w[name arguments], list: false,
                     strict: false, spelled: nil, **options)
        super(name, **options)
        # A bracket at the end of a mark is one of the JSON.
        @spelled = spelled || @marks.first.sub(/[{\[]\z/, "")
        @begun = begun
        @strict = strict
        @closing = closing
        @inside = inside
        @fields = fields
        @list = list
      end

      # @see ToolFormat#read
      def read(text, _tools, final: false)
        scanner = StringScanner.new(text)
        mark = @marks.find { |candidate| text.start_with?(candidate) }
        scanner.skip(/#{Regexp.escape(mark.sub(/[{\[]\z/, ""))}/)
        return waiting(scanner, final) unless scanner.skip(/#{@inside.source}(?=[{\[])/)

        calls, state = calls(scanner)
        return if state == :bad || (final && calls.none?(&:arguments))

        Reading.new(calls: calls, stop: state == :whole ? behind(scanner, final) : nil)
      end

      # @see ToolFormat#grammar
      def grammar(tools)
        Grammar.new(tools).json_calls(@spelled, @closing, tokens: tokens, fields: @fields, list: @list)
      end

      # @see ToolFormat#guarded
      def guarded(tools)
        rest = Grammar.new(tools).json_calls("", @closing, tokens: tokens, fields: @fields, list: @list, most: 8)
        [@marks.first, rest]
      end

      private

      def waiting(scanner, final)
        Reading.new(calls: [], stop: nil) if !final && scanner.rest.match?(/\A#{@begun.source}\z/)
      end

      # Several calls are an Array, or stand behind each other.
      def calls(scanner)
        list = scanner.skip(/\[\s*/)
        found = []
        loop do
          return [found, :whole] if list && scanner.skip(/[\s,]*\]/)

          state, call = scanner.check(/\{/) ? JsonCut.call(scanner, strict: @strict) : [ending(scanner), nil]
          call.is_a?(Array) ? found.concat(call) : found.push(*[call].compact)
          return [found, state] unless state == :whole
          next scanner.skip(/[\s,]+/) if list

          here = scanner.pos
          next if scanner.skip(/[\s;]*(?=\{)/)

          scanner.pos = here
          return [found, :whole]
        end
      end

      def ending(scanner)
        scanner.check(/\s*\z/) ? :cut : :bad
      end

      # Where the section ends, for which its closing mark may have to come first.
      def behind(scanner, final)
        here = scanner.pos
        rest = scanner.skip(/\s*/) && scanner.rest
        if @closing && rest.start_with?(@closing) then scanner.pos + @closing.bytesize
        elsif final || (@closing ? !@closing.start_with?(rest) : !rest.match?(/\A;?\s*\z/)) then here
        end
      end
    end
  end
end
