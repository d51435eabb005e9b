# frozen_string_literal: true

require "set"

module Candle
  # Entities from a list of terms, found as whole words.
  #
  # @example
  #   recognizer = Candle::GazetteerEntityRecognizer.new("DRUG", ["aspirin"])
  #   recognizer.recognize("Süßes Aspirin").first.slice(:text, :start) # => {:text=>"Aspirin", :start=>6}
  class GazetteerEntityRecognizer
    # A letter of a script that puts spaces between words; the others have no word boundaries to look for.
    LETTER = '[\p{Word}&&[^\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]]'
    private_constant :LETTER

    # @return [String]
    attr_reader :entity_type
    # @return [Set<String>] in lower case unless they are case sensitive
    attr_reader :terms
    # @return [Boolean]
    attr_reader :case_sensitive

    # @param entity_type [String] the label of what is found
    # @param terms [Array<String>]
    # @param case_sensitive [Boolean]
    def initialize(entity_type, terms = [], case_sensitive: false)
      @entity_type = entity_type
      @case_sensitive = case_sensitive
      @terms = Set.new
      @patterns = {}
      add_terms(terms)
    end

    # @param terms [Array<String>, Enumerable<String>, String]
    # @return [self]
    # @raise [InvalidInputError] for a term that is no text
    def add_terms(terms)
      terms = terms.respond_to?(:to_str) ? [terms] : terms.to_a
      TextInput.utf8_all(terms, "terms").each do |term|
        @terms << (case_sensitive ? term : term.downcase) unless term.strip.empty?
      end
      self
    end

    # Adds the lines of a file; empty ones and those that begin with `#` are left out.
    #
    # @param path [String, Pathname]
    # @return [self]
    def load_from_file(path)
      lines = File.readlines(path, chomp: true, encoding: "UTF-8").map(&:strip)
      add_terms(lines.reject { |line| line.empty? || line.start_with?("#") })
    end

    # @param text [String]
    # @param _tokenizer [Tokenizer, nil] not needed; recognizers are called alike
    # @return [Array<Hash>] `{text:, label:, start:, end:, confidence:, source:}` in the order of the text, with places
    #   in characters
    def recognize(text, _tokenizer = nil)
      text = TextInput.utf8(text)
      terms.flat_map { |term| occurrences(text, pattern(term)) }.sort_by { |entity| [entity[:start], -entity[:end]] }
    end

    private

    # Matches the text as it is: a copy in lower case may have other places ("İ" becomes two characters).
    def pattern(term)
      @patterns[term] ||= begin
        before = "(?<!#{LETTER})" if term.match?(/\A#{LETTER}/)
        after = "(?!#{LETTER})" if term.match?(/#{LETTER}\z/)
        Regexp.new("#{before}#{Regexp.escape(term)}#{after}", case_sensitive ? 0 : Regexp::IGNORECASE)
      end
    end

    def occurrences(text, pattern)
      found = []
      position = 0
      while (match = pattern.match(text, position))
        found << { text: match[0], label: entity_type, start: match.begin(0), end: match.end(0), confidence: 1.0,
                   source: "gazetteer" }
        position = match.begin(0) + 1
      end
      found
    end
  end
end
