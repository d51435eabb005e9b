# frozen_string_literal: true

module Candle
  # Replaces entities in texts. It fails closed: unknown labels raise, words are replaced as a whole, and entities that
  # overlap are replaced together.
  #
  # @api private
  class Redaction
    # A character of a word, in scripts that put spaces between words.
    LETTER = /[[\p{L}\p{M}\p{N}_]&&[^\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]]/
    OTHER = /(?!#{LETTER})./m
    private_constant :LETTER, :OTHER

    # @param labels [Array<String, Symbol>, String, Symbol, nil]
    # @param with [String, #call]
    # @param known [Array<String>] the labels that there are
    # @raise [InvalidInputError] for no labels, and for one that is not known
    def initialize(labels, with, known:)
      unless String === with || Arguments.answers?(with, :call)
        raise ArgumentError, "with must be a String or a Proc, not #{Arguments.shown(with)}"
      end

      @labels = NilClass === labels ? nil : EntityLabels.new(known).resolve(labels)
      @with = with
    end

    # @param texts [Array<String>]
    # @param single [Boolean] whether one text was given
    # @yieldparam texts [Array<String>]
    # @yieldreturn [Array<Array<Hash>>] the entities of each
    # @return [String, Array<String>]
    def apply(texts, single)
      redacted = texts.zip(yield(texts)).map { |text, entities| replaced(text, entities) }
      single ? redacted.first : redacted
    end

    private

    def replaced(text, entities)
      result = +""
      position = 0
      spans(text, entities).each do |entity|
        result << text[position...entity[:start]] << replacement(entity)
        position = entity[:end]
      end
      result << text[position..]
    end

    # The entities to replace in the order of the text, as whole words, none of which overlap.
    def spans(text, entities)
      wanted = entities.select { |entity| wanted?(entity) }.map { |entity| whole_words(text, entity) }
      wanted.sort_by { |entity| [entity[:start], -entity[:end]] }.each_with_object([]) do |entity, kept|
        apart = kept.empty? || entity[:start] >= kept.last[:end]
        kept << (apart ? entity : joined(text, kept.pop, entity))
      end
    end

    # What a pattern or a list of terms finds has the borders that its author chose.
    def whole_words(text, entity)
      return entity if entity[:source]

      first, last = entity.values_at(:start, :end)
      first = (text.rindex(OTHER, first - 1) || -1) + 1 if first.positive? && text[first]&.match?(LETTER)
      last = text.index(OTHER, last) || text.size if last.positive? && text[last - 1].match?(LETTER)
      entity.merge(text: text[first...last], start: first, end: last)
    end

    # One span for both, with the label of the surer one.
    def joined(text, one, other)
      surer = other[:confidence] > one[:confidence] ? other : one
      last = [one[:end], other[:end]].max
      surer.merge(text: text[one[:start]...last], start: one[:start], end: last)
    end

    def wanted?(entity)
      @labels.nil? || @labels.include?(kind(entity))
    end

    # Labels of token classifiers have a prefix; those of others may begin with what looks like one ("E-mail").
    def kind(entity)
      entity.key?(:token_start) ? entity[:label].sub(NER::PREFIX, "") : entity[:label]
    end

    def replacement(entity)
      return @with.call(entity).to_s if @with.respond_to?(:call)

      @with.gsub(/%\{(label|text)\}/) { Regexp.last_match(1) == "label" ? kind(entity) : entity[:text] }
    end
  end
end
