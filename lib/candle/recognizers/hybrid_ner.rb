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
      settings = { confidence_threshold: confidence_threshold, aggregation: aggregation }
      from_model = model_ner&.extract_entities(texts, **settings)
      lists = texts.each_with_index.map do |text, index|
        found = (pattern_recognizers + gazetteer_recognizers).flat_map { |recognizer| recognizer.recognize(text) }
        without_overlaps((from_model ? from_model[index] : []) + found)
      end
      single ? lists.first : lists
    end

    # @param input [String, Array<String>]
    # @param labels [Array<String, Symbol>, String, Symbol, nil] the kinds to replace; nil is all
    # @param with [String, #call] as {NER#redact} takes it
    # @param options [Hash] as {#extract_entities} takes them
    # @return [String, Array<String>]
    def redact(input, labels: nil, with: "[%{label}]", **options) # rubocop:disable Style/FormatStringToken
      Redaction.new(labels, with).apply(*Arguments.texts(input)) { |texts| extract_entities(texts, **options) }
    end

    # @return [String] one line
    def inspect
      "#<Candle::HybridNER #{model_ner ? model_ner.model_id : "no model"}, #{pattern_recognizers.size} of patterns, " \
        "#{gazetteer_recognizers.size} of terms>"
    end

    private

    def without_overlaps(entities)
      ordered = entities.sort_by { |entity| [entity[:start], -entity[:confidence], -entity[:end]] }
      ordered.each_with_object([]) do |entity, kept|
        kept << entity if kept.empty? || entity[:start] >= kept.last[:end]
      end
    end
  end
end
