# frozen_string_literal: true

module Candle
  module ToolFormats
    # Calls whose name stands before their arguments as JSON.
    #
    # @api private
    class NamedCalls < ToolFormat
      # So long may a header be.
      LONGEST = 300
      private_constant :LONGEST

      # @param header [Regexp] from the mark to the arguments, with the groups `name` and perhaps `id`
      # @param begun [Regexp, nil] what may become a header; nil is anything short without a brace
      # @param footers [Array<String>] what may follow the arguments
      # @param spelled [Array(String, String, String), nil] what is written before the name, between it and the
      #   arguments, and behind them
      # @param options [Hash] as {ToolFormat} takes them
      def initialize(name, header:, begun: nil, footers: [], spelled: nil, **options)
        super(name, **options)
        @header = header
        @begun = begun
        @footers = footers
        @spelled = spelled
      end

      # @see ToolFormat#read
      def read(text, _tools, final: false)
        scanner = StringScanner.new(text)
        return (Reading.new(calls: [], stop: nil) if !final && begun?(text)) unless scanner.skip(@header)

        named = @header.names.to_h { |group| [group, scanner[group]] }
        start = scanner.pos
        return if scanner.eos? ? final : !scanner.check(/\{/)

        state = scanner.eos? ? :cut : JsonCut.skip(scanner)
        json = text.byteslice(start...scanner.pos)
        return whole(scanner, named, json, final) if state == :whole

        final ? nil : Reading.new(calls: [partial(named, json)], stop: nil)
      end

      # @see ToolFormat#grammar
      def grammar(tools)
        @spelled && Grammar.new(tools).named_calls(*@spelled, tokens: tokens)
      end

      # @see ToolFormat#guarded
      def guarded(tools)
        return unless @spelled

        before, between, behind = @spelled
        opening = @marks.find { |mark| before.end_with?(mark) } || @marks.find { |mark| before.include?(mark) }
        rest = before.partition(opening).last
        [opening, Grammar.new(tools).named_calls(rest, between, behind, tokens: tokens)]
      end

      private

      def begun?(text)
        @begun ? text.match?(/\A(?:#{@begun.source})\z/m) : text.bytesize < LONGEST && !text.include?("{")
      end

      def whole(scanner, named, json, final)
        arguments = JsonCut.parse(json)
        return unless arguments.is_a?(Hash)

        call = partial(named, json)
        call.arguments = arguments
        Reading.new(calls: [call], stop: behind(scanner, final))
      end

      # Where the section ends; nil while the longest footer may still come.
      def behind(scanner, final)
        here = scanner.pos
        scanner.skip(/\s*/)
        rest = scanner.rest
        return if !final && @footers.any? { |footer| footer.size > rest.size && footer.start_with?(rest) }

        footer = @footers.select { |candidate| rest.start_with?(candidate) }.max_by(&:size)
        footer ? scanner.pos + footer.bytesize : here
      end

      def partial(named, json)
        id = named["id"].to_s
        Partial.new(name: named["name"].strip, json: json, id: id.empty? ? nil : id)
      end
    end
  end
end
