# frozen_string_literal: true

module Candle
  module ToolFormats
    # Calls as source code writes them, as in `[weather(city="Rome", days=2)]` or `call:weather{city:'Rome'}`.
    #
    # @api private
    class LooseCalls < ToolFormat
      WORDS = { "true" => true, "True" => true, "false" => false, "False" => false, "null" => nil,
                "None" => nil }.freeze
      private_constant :WORDS

      # The text ended within a value, or has something else there.
      class Cut < StandardError; end
      # What stands there is not a value.
      class Bad < StandardError; end
      private_constant :Cut, :Bad

      # @param call [Regexp] what begins a call, with the group `name`
      # @param brackets [Array(String, String)] what stands around the arguments
      # @param assigned [Regexp] what stands between a key and its value
      # @param quotes [Array<String>] what stands around texts, beside the usual quotes
      # @param list [Boolean] whether calls stand in brackets
      # @param closing [String, nil] what ends a section
      # @param spelled [Hash, nil] how a call is written, as {ArgumentGrammar#loose_calls} takes it
      # @param options [Hash] as {ToolFormat} takes them
      def initialize(name, call:, brackets: ["(", ")"], assigned: /\s*=\s*/, quotes: [], list: true, closing: nil,
                     spelled: nil, **options)
        super(name, **options)
        @spelled = spelled
        @call = call
        @brackets = brackets
        @assigned = assigned
        @quotes = quotes
        @list = list
        @closing = closing
      end

      # @see ToolFormat#grammar
      def grammar(tools)
        @spelled && ArgumentGrammar.new(tools).loose_calls(**@spelled, tokens: tokens)
      end

      # @see ToolFormat#guarded
      def guarded(tools)
        return unless @spelled

        opening = tokens.find { |token| @spelled[:opening].start_with?(token) } or return
        rest = @spelled.merge(opening: @spelled[:opening].delete_prefix(opening))
        grammar = ArgumentGrammar.new(tools).loose_calls(**rest, tokens: tokens)
        grammar && [opening, grammar]
      end

      # @see ToolFormat#read
      def read(text, _tools, final: false)
        scanner = StringScanner.new(text)
        mark = @marks.find { |candidate| text.start_with?(candidate) }
        scanner.skip(/#{Regexp.escape(mark)}/) unless mark == "["
        calls = []
        calls(scanner, calls)
        Reading.new(calls: calls, stop: behind(scanner, final))
      rescue Cut
        return if final && calls.none?(&:arguments)

        Reading.new(calls: calls, stop: nil)
      rescue Bad
        nil
      end

      private

      def calls(scanner, calls)
        list = @list && scanner.skip(/\s*\[/)
        loop do
          scanner.skip(/[\s,]*/)
          break if list && scanner.skip(/\]/)
          break if !list && calls.any? && !scanner.check(@call)

          header(scanner)
          calls << Partial.new(name: scanner[:name], json: "")
          calls.last.arguments = arguments(scanner)
          calls.last.json = JSON.generate(calls.last.arguments)
          break unless list
        end
      end

      def header(scanner)
        scanner.skip(@call) or raise(scanner.rest.match?(/\A[\w.:\s-]*\z/) ? Cut : Bad)
      end

      def arguments(scanner)
        found = {}
        loop do
          scanner.skip(/[\s,]*/)
          return found if scanner.skip(/#{Regexp.escape(@brackets.last)}/)

          key = key(scanner)
          scanner.skip(@assigned) or raise(scanner.rest.match?(/\A\s*\z/) ? Cut : Bad)
          found[key] = value(scanner)
        end
      end

      def key(scanner)
        quoted = quoted(scanner)
        return quoted if quoted

        word = scanner.scan(/[\p{L}_$][\p{L}\p{N}_$.-]*/)
        return word if word && !scanner.eos?

        raise(scanner.eos? || may_quote?(scanner) ? Cut : Bad)
      end

      def value(scanner)
        quoted = quoted(scanner)
        return quoted if quoted
        return list(scanner) if scanner.skip(/\[/)
        return object(scanner) if scanner.skip(/\{/)

        word = scanner.scan(/[^\s,\[\]{}()"'<]+/)
        raise Cut if scanner.eos? || may_quote?(scanner)

        literal(word)
      end

      def literal(word)
        return WORDS[word] if WORDS.key?(word)

        JSON.parse(word.to_s.empty? ? "?" : word)
      rescue JSON::ParserError
        raise Bad
      end

      def list(scanner)
        found = []
        loop do
          scanner.skip(/[\s,]*/)
          return found if scanner.skip(/\]/)

          found << value(scanner)
        end
      end

      def object(scanner)
        found = {}
        loop do
          scanner.skip(/[\s,]*/)
          return found if scanner.skip(/\}/)

          key = key(scanner)
          scanner.skip(/\s*:\s*/) or raise(scanner.rest.match?(/\A\s*\z/) ? Cut : Bad)
          found[key] = value(scanner)
        end
      end

      # @return [String, nil] a text in quotes; nil where none begins
      def quoted(scanner)
        if (mark = @quotes.find { |candidate| scanner.rest.start_with?(candidate) })
          scanner.pos += mark.bytesize
          text = scanner.scan_until(/#{Regexp.escape(mark)}/) or raise Cut
          return text.delete_suffix(mark)
        end

        quote = scanner.check(/["']/) or return
        raw = scanner.scan(/#{quote}(?>[^#{quote}\\]+|\\.)*#{quote}/m) or raise Cut
        unescaped(raw[1...-1])
      end

      def unescaped(text)
        text.gsub(/\\(u\h{4}|.)/m) do
          escape = Regexp.last_match(1)
          next [escape[1..].hex].pack("U") if escape.size > 1

          { "n" => "\n", "t" => "\t", "r" => "\r" }.fetch(escape, escape)
        end
      end

      def may_quote?(scanner)
        rest = scanner.rest
        !rest.empty? && @quotes.any? { |mark| mark.start_with?(rest) }
      end

      def behind(scanner, final)
        here = scanner.pos
        return here unless @closing

        scanner.skip(/\s*/)
        rest = scanner.rest
        return scanner.pos + @closing.bytesize if rest.start_with?(@closing)

        here if final || !@closing.start_with?(rest)
      end
    end
  end
end
