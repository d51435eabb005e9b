# frozen_string_literal: true

require "strscan"

module Candle
  # Writes a Ruby regular expression in the syntax of the engine, so that what the engine generates matches in Ruby.
  # What no automaton can follow (lookaround, backreferences, atomic groups) is an error.
  #
  # @api private
  class RegexSyntax
    # Inside brackets; Ruby's own are ASCII, other than the engine's.
    SETS = { "d" => "0-9", "w" => "a-zA-Z0-9_", "s" => " \\t\\r\\n\\f\\v", "h" => "0-9a-fA-F" }.freeze

    # Ruby's bracket and property names for what the engine knows by Unicode's.
    PROPERTIES = {
      "alnum" => "\\p{Alphabetic}\\p{Nd}", "alpha" => "\\p{Alphabetic}", "blank" => "\\t\\p{Zs}",
      "cntrl" => "\\p{Cc}", "digit" => "\\p{Nd}", "lower" => "\\p{Lowercase}",
      "punct" => "\\p{P}$+<=>\\^`|\\~", "space" => "\\p{White_Space}",
      "upper" => "\\p{Uppercase}", "xdigit" => "0-9a-fA-F", "word" => "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}",
      "ascii" => "\\x00-\\x7f"
    }.freeze

    CONTROLS = { "n" => "\\n", "t" => "\\t", "r" => "\\r", "f" => "\\f", "v" => "\\v", "a" => "\\x07",
                 "e" => "\\x1b" }.freeze

    ANCHORS = { "A" => "^", "z" => "$", "Z" => "$" }.freeze

    UNSUPPORTED = {
      "b" => "word boundaries", "B" => "word boundaries", "G" => "\\G", "K" => "\\K", "X" => "\\X",
      "k" => "backreferences", "g" => "subexpression calls", "c" => "control escapes", "C" => "control escapes",
      "M" => "meta escapes"
    }.freeze

    GROUPS = {
      "=" => "lookahead", "!" => "lookahead", "<=" => "lookbehind", "<!" => "lookbehind", ">" => "atomic groups",
      "~" => "absence operators", "(" => "conditionals"
    }.freeze

    # A longer pattern is refused.
    MOST_BYTES = 1 << 20
    private_constant :MOST_BYTES

    # @param pattern [Regexp, String] a String is the source of a Regexp
    # @param search [Boolean] whether it is looked for in a text instead of being the whole of one: then the shortest
    #   match counts where it is asked for, and lines and words have boundaries
    # @return [String] the same in the engine's syntax
    # @raise [InvalidInputError] naming what can't be followed
    def self.translate(pattern, search: false)
      unless Regexp === pattern || TextInput.text?(pattern)
        raise InvalidInputError, "pattern must be a Regexp or a String, not #{Arguments.shown(pattern)}"
      end

      new(Regexp === pattern ? pattern : compiled(TextInput.utf8(pattern, "pattern")), search: search).translate
    rescue RegexpError => e
      raise InvalidInputError, "the pattern is not a regular expression: #{e.message}"
    end

    # Ruby compiles a Regexp without looking at interrupts, and the engine takes no longer one.
    def self.compiled(source)
      return Regexp.new(source) if source.bytesize <= MOST_BYTES

      raise InvalidInputError, "the pattern has #{source.bytesize} bytes; at most #{MOST_BYTES} are taken"
    end
    private_class_method :compiled

    def initialize(regexp, search: false)
      @regexp = regexp
      @search = search
      @scanner = StringScanner.new(TextInput.utf8(regexp.source, "pattern"))
      @extended = [regexp.options.anybits?(Regexp::EXTENDED)]
      @output = +""
    end

    # @return [String]
    def translate
      flags = { Regexp::IGNORECASE => "i", Regexp::MULTILINE => "s" }.select { |bit, _| @regexp.options.anybits?(bit) }
      @output << "(?#{flags.values.join}:"
      element until @scanner.eos?
      "#{@output})"
    end

    private

    def element
      if @extended.last && @scanner.skip(/\s+|#[^\n]*/) then nil
      elsif @scanner.skip(/\\/) then @output << escape
      elsif @scanner.skip(/\[/) then @output << set
      elsif @scanner.skip(/\(/) then group
      elsif @scanner.skip(/\)/) then close
      elsif @scanner.scan(/[*+?]|\{(?:\d+,?\d*|,\d+)\}/) then quantifier(@scanner.matched)
      elsif @scanner.scan(/[\^$.|]/) then @output << plain(@scanner.matched)
      else
        @output << literal(@scanner.getch)
      end
    end

    def plain(text)
      @search && text.match?(/[\^$]/) ? "(?m:#{text})" : text
    end

    def quantifier(text)
      unsupported("possessive quantifiers") if text.size == 1 && @scanner.check(/\+/)
      lazy = @scanner.skip(/\?/) && @search
      @output << "#{text.sub("{,", "{0,")}#{"?" if lazy}"
    end

    def group
      return open_group("(?:") unless @scanner.skip(/\?/)

      @scanner.scan(/<[=!]|[=!>~(]/) and unsupported(GROUPS.fetch(@scanner.matched))
      if @scanner.skip(/#[^)]*\)/) then nil
      elsif @scanner.skip(/:|<\w+>|'\w+'/) then open_group("(?:")
      elsif @scanner.scan(/([mixadu]*)(?:-([mix]*))?([:)])/) then flags(@scanner[1], @scanner[2].to_s,
                                                                        @scanner[3] == ":")
      else
        unsupported("the group (?#{@scanner.rest[0, 8]}")
      end
    end

    def open_group(text, extended: @extended.last)
      @extended.push(extended)
      @output << text
    end

    def close
      @extended.pop
      @output << ")"
    end

    # Ruby lets an option without a group reach over the alternatives that follow; at the beginning that is the same.
    def flags(set, cleared, grouped)
      unsupported("an option in the middle of a group") unless grouped || @output.end_with?(":")
      extended = (@extended.last || set.include?("x")) && !cleared.include?("x")
      set, cleared = [set, cleared].map { |names| names.delete("xadu").tr("m", "s") }
      text = cleared.empty? ? set : "#{set}-#{cleared}"
      return open_group("(?#{text}:", extended: extended) if grouped

      @extended[-1] = extended
      @output << "(?#{text})" unless text.empty?
    end

    def escape(in_set: false)
      letter = @scanner.getch || unsupported("a lone backslash")
      if SETS.key?(letter) then in_set ? SETS[letter] : "[#{SETS[letter]}]"
      elsif SETS.key?(letter.downcase) then "[^#{SETS[letter.downcase]}]"
      elsif CONTROLS.key?(letter) then CONTROLS[letter]
      elsif letter.match?(/[pP]/) then property(letter == "P")
      elsif letter.match?(/[ux0]/) then code_point(letter, in_set)
      else
        in_set ? bracket_escape(letter) : plain_escape(letter)
      end
    end

    def plain_escape(letter)
      return "\\#{letter}" if @search && %w[A z b B].include?(letter)

      unsupported("\\Z") if @search && letter == "Z"
      return ANCHORS[letter] if ANCHORS.key?(letter)
      return "(?:\\r\\n|[\\n\\v\\f\\r\\x{85}\\x{2028}\\x{2029}])" if letter == "R"

      unsupported("backreferences") if letter.match?(/[1-9]/)
      unsupported(UNSUPPORTED[letter]) if UNSUPPORTED.key?(letter)
      literal(letter)
    end

    def bracket_escape(letter)
      return "\\x08" if letter == "b"

      unsupported("octal escapes") if letter.match?(/[1-7]/)
      unsupported(UNSUPPORTED[letter]) if UNSUPPORTED[letter].to_s.end_with?("escapes")
      literal(letter)
    end

    def property(negated)
      name = @scanner.scan(/\{\^?[\w ]+\}/) or unsupported("a property without a name")
      negated ^= name.start_with?("{^")
      name = name.delete("{}^")
      known = PROPERTIES[name.downcase]
      if known
        "[#{"^" if negated}#{known}]"
      else
        "\\#{negated ? "P" : "p"}{#{name}}"
      end
    end

    def code_point(letter, in_set)
      if letter == "u" && @scanner.skip(/\{/)
        points = @scanner.scan_until(/\}/).to_s.delete("}").split
        unsupported("several characters in one escape of a set") if in_set && points.size != 1
        return points.map { |point| "\\x{#{point}}" }.join
      end
      digits = @scanner.scan({ "u" => /\h{4}/, "x" => /\h{1,2}/, "0" => /[0-7]{0,2}/ }.fetch(letter)).to_s
      point = letter == "0" ? digits.to_i(8) : digits.to_i(16)
      unsupported("bytes that aren't characters") if letter != "u" && point > 0x7f
      format("\\x{%x}", point)
    end

    def set
      text = +(@scanner.skip(/\^/) ? "[^" : "[")
      text << "\\]" if @scanner.skip(/\]/)
      until @scanner.skip(/\]/)
        unsupported("an open bracket") if @scanner.eos?
        text << set_element
      end
      "#{text}]"
    end

    def set_element
      if @scanner.scan(/\[:(\^?)(\w+):\]/)
        known = PROPERTIES[@scanner[2]] or unsupported("[:#{@scanner[2]}:]")
        "[#{@scanner[1]}#{known}]"
      elsif @scanner.skip(/\[/) then set
      elsif @scanner.skip(/\\/) then escape(in_set: true)
      elsif @scanner.skip(/&&/) then "&&"
      elsif @scanner.skip(/-/) then "-"
      else
        literal(@scanner.getch)
      end
    end

    def literal(character)
      character.match?(/[[:ascii:]&&[^a-zA-Z0-9 [:cntrl:]<>"'`%,:;=@!_]]/) ? "\\#{character}" : character
    end

    def unsupported(what)
      raise InvalidInputError, "the pattern #{@regexp.inspect} can't be followed while generating, because of " \
                               "#{what}; write it without"
    end
  end
end
