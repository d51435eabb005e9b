# frozen_string_literal: true

module Candle
  # Entities that look alike: dates, codes, addresses.
  #
  # @example
  #   recognizer = Candle::PatternEntityRecognizer.new("CODE", [/[A-Z]{2}\d+/])
  #   recognizer.recognize("Café AB12")
  #   # => [{:text=>"AB12", :label=>"CODE", :start=>5, :end=>9, :confidence=>1.0, :source=>"pattern"}]
  class PatternEntityRecognizer
    # @return [Array<Regexp, String>]
    attr_reader :patterns
    # @return [String]
    attr_reader :entity_type

    # @param entity_type [String] the label of what is found
    # @param patterns [Array<Regexp, String>] a String is taken for a regular expression
    def initialize(entity_type, patterns = [])
      @entity_type = entity_type
      @patterns = []
      @compiled = []
      (patterns.is_a?(Array) ? patterns : [patterns]).each { |pattern| add_pattern(pattern) }
    end

    # @param pattern [Regexp, String]
    # @return [self]
    # @raise [InvalidInputError] for what isn't a regular expression
    def add_pattern(pattern)
      unless pattern.is_a?(Regexp) || pattern.is_a?(String)
        raise InvalidInputError, "a pattern must be a Regexp or a String, not #{Arguments.shown(pattern)}"
      end

      @compiled << TextPattern.for(Regexp.new(pattern))
      @patterns << pattern
      self
    rescue RegexpError => e
      raise InvalidInputError, "#{pattern.inspect} is not a regular expression: #{e.message}"
    end

    # @param text [String]
    # @param _tokenizer [Tokenizer, nil] not needed; recognizers are called alike
    # @return [Array<Hash>] `{text:, label:, start:, end:, confidence:, source:}`, with places in characters
    # @raise [InvalidInputError] when a pattern with lookaround, backreferences or the like takes more than five
    #   seconds; the others are searched in linear time
    def recognize(text, _tokenizer = nil)
      text = TextInput.utf8(text)
      @compiled.flat_map { |pattern| pattern.places(text) }.map do |first, last|
        { text: text[first...last], label: entity_type, start: first, end: last, confidence: 1.0, source: "pattern" }
      end
    end

    # @return [String] one line
    def inspect
      "#<Candle::PatternEntityRecognizer #{entity_type} #{patterns.size} patterns>"
    end
  end
end
