# frozen_string_literal: true

module Candle
  # A model, patterns and lists of terms together.
  #
  # @example
  #   ner = Candle::HybridNER.new
  #   ner.add_pattern_recognizer("CODE", [/[A-Z]{2}\d+/]).add_gazetteer_recognizer("CITY", ["paris"])
  #   ner.extract_entities("AB12 in Paris").map { |entity| entity[:label] } # => ["CODE", "CITY"]
  class HybridNER
    # @return [NER, nil]
    attr_reader :model_ner
    # @return [Array<PatternEntityRecognizer>]
    attr_reader :pattern_recognizers
    # @return [Array<GazetteerEntityRecognizer>]
    attr_reader :gazetteer_recognizers

    # @param model_id [String, Pathname, nil] nil works without a model
    # @param device [Device, String, Symbol, nil]
    # @param tokenizer [Tokenizer, String, nil]
    def initialize(model_id = nil, device: nil, tokenizer: nil)
      @model_ner = model_id && NER.from_pretrained(model_id, device: device, tokenizer: tokenizer)
      @pattern_recognizers = []
      @gazetteer_recognizers = []
    end

    # @param entity_type [String]
    # @param patterns [Array<Regexp, String>]
    # @return [self]
    def add_pattern_recognizer(entity_type, patterns)
      @pattern_recognizers << PatternEntityRecognizer.new(entity_type, patterns)
      self
    end

    # @param entity_type [String]
    # @param terms [Array<String>]
    # @param options [Hash] as {GazetteerEntityRecognizer#initialize} takes them
    # @return [self]
    def add_gazetteer_recognizer(entity_type, terms, **options)
      @gazetteer_recognizers << GazetteerEntityRecognizer.new(entity_type, terms, **options)
      self
    end

    # Of entities that overlap the one that begins first stays; of those that begin together the surer, then the
    # longer.
    #
    # @param input [String, Array<String>]
    # @param confidence_threshold [Float] for the model's entities
    # @param aggregation [Symbol, String] as {NER#extract_entities} takes it
    # @return [Array<Hash>, Array<Array<Hash>>] as {NER#extract_entities} gives them; those of patterns and terms
    #   have a `source` and no tokens
    def extract_entities(input, confidence_threshold: 0.9, aggregation: :simple)
      texts, single = Arguments.texts(input)
      lists = found_in(texts, confidence_threshold, aggregation).map { |found| without_overlaps(found) }
      single ? lists.first : lists
    end

    # @return [Array<String>] the kinds of entities that the model and the recognizers know, sorted
    def entity_types
      [*model_ner&.entity_types, *recognizers.map { |recognizer| recognizer.entity_type.to_s }].uniq.sort
    end

    # Replaces entities. A word in which the model found an entity is replaced as a whole; what a pattern or a term
    # matched is replaced exactly. Entities that overlap are replaced together.
    #
    # @param input [String, Array<String>]
    # @param labels [Array<String, Symbol>, String, Symbol, nil] the kinds to replace, as {NER#redact} takes them; nil
    #   is all
    # @param with [String, #call] as {NER#redact} takes it
    # @param confidence_threshold [Float] for the model's entities
    # @param aggregation [Symbol, String] as {NER#extract_entities} takes it
    # @return [String, Array<String>]
    # @raise [InvalidInputError] when labels is empty, or has a label that is not among {#entity_types}
    def redact(input, labels: nil, with: "[%{label}]", confidence_threshold: 0.9, aggregation: :first) # rubocop:disable Style/FormatStringToken
      redaction = Redaction.new(labels, with, known: entity_types)
      redaction.apply(*Arguments.texts(input)) { |texts| found_in(texts, confidence_threshold, aggregation) }
    end

    # @return [String] one line
    def inspect
      "#<Candle::HybridNER #{model_ner ? model_ner.model_id : "no model"}, #{pattern_recognizers.size} of patterns, " \
        "#{gazetteer_recognizers.size} of terms>"
    end

    private

    def recognizers
      pattern_recognizers + gazetteer_recognizers
    end

    # What the model and the recognizers find in each text, overlaps included.
    def found_in(texts, confidence_threshold, aggregation)
      from_model = model_ner&.extract_entities(texts, confidence_threshold: confidence_threshold,
                                                      aggregation: aggregation)
      texts.each_with_index.map do |text, index|
        (from_model ? from_model[index] : []) + recognizers.flat_map { |recognizer| recognizer.recognize(text) }
      end
    end

    def without_overlaps(entities)
      ordered = entities.sort_by { |entity| [entity[:start], -entity[:confidence], -entity[:end]] }
      ordered.each_with_object([]) do |entity, kept|
        kept << entity if kept.empty? || entity[:start] >= kept.last[:end]
      end
    end
  end
end
