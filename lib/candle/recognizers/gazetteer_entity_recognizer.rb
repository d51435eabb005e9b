# frozen_string_literal: true

require "set"

module Candle
  # Entities from a list of terms, found as whole words. However many terms there are, a text is read once.
  #
  # @example
  #   recognizer = Candle::GazetteerEntityRecognizer.new("DRUG", ["aspirin"])
  #   recognizer.recognize("Süßes Aspirin").first.slice(:text, :start) # => {:text=>"Aspirin", :start=>6}
  class GazetteerEntityRecognizer
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
      @lock = Mutex.new
      add_terms(terms)
    end

    # @param terms [Array<String>, Enumerable<String>, String]
    # @return [self]
    # @raise [InvalidInputError] for a term that isn't a text
    def add_terms(terms)
      terms = TextInput.text?(terms) ? [terms] : terms.to_a
      TextInput.utf8_all(terms, "terms").each do |term|
        @terms << (case_sensitive ? term : term.downcase) unless term.strip.empty?
      end
      @lock.synchronize { @gazetteer = nil }
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
      gazetteer.places(text).map do |first, last|
        { text: text[first...last], label: entity_type, start: first, end: last, confidence: 1.0, source: "gazetteer" }
      end
    end

    # @return [String] one line
    def inspect
      "#<Candle::GazetteerEntityRecognizer #{entity_type} #{terms.size} terms>"
    end

    private

    # Built when it is first needed, and again after terms were added.
    def gazetteer
      @lock.synchronize { @gazetteer ||= Gazetteer.build(terms.to_a, case_sensitive ? true : false) }
    end
  end
end
