# frozen_string_literal: true

module Candle
  # Puts something else in the place of entities.
  #
  # @api private
  class Redaction
    # @param labels [Array<String, Symbol>, String, Symbol, nil]
    # @param with [String, #call]
    def initialize(labels, with)
      unless String === with || Arguments.answers?(with, :call)
        raise ArgumentError, "with must be a String or a Proc, not #{Arguments.shown(with)}"
      end

      @labels = labels && Array(labels).map { |label| Arguments.label(label, "labels").downcase }
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
      entities.select { |entity| wanted?(entity) }.sort_by { |entity| entity[:start] }.each do |entity|
        next if entity[:start] < position

        result << text[position...entity[:start]] << replacement(entity)
        position = entity[:end]
      end
      result << text[position..]
    end

    def wanted?(entity)
      @labels.nil? || @labels.include?(kind(entity).downcase)
    end

    def kind(entity)
      entity[:label].sub(NER::PREFIX, "")
    end

    def replacement(entity)
      return @with.call(entity).to_s if @with.respond_to?(:call)

      @with.gsub(/%\{(label|text)\}/) { Regexp.last_match(1) == "label" ? kind(entity) : entity[:text] }
    end
  end
end
