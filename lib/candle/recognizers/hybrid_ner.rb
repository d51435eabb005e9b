# frozen_string_literal: true

module Candle
  # A model, patterns and lists of terms together. The model is a token classifier, or {GLiNER} with `labels:`.
  #
  # @example
  #   ner = Candle::HybridNER.new
  #   ner.add_pattern_recognizer("CODE", [/[A-Z]{2}\d+/]).add_gazetteer_recognizer("CITY", ["paris"])
  #   ner.extract_entities("AB12 in Paris").map { |entity| entity[:label] } # => ["CODE", "CITY"]
  class HybridNER
    # How sure the entities of each kind of model are to be, where a call does not say.
    THRESHOLDS = { NER => 0.9, LabelRecognizer => 0.5 }.freeze
    private_constant :THRESHOLDS

    # @return [NER, LabelRecognizer, nil]
    attr_reader :model_ner
    # @return [Array<PatternEntityRecognizer>]
    attr_reader :pattern_recognizers
    # @return [Array<GazetteerEntityRecognizer>]
    attr_reader :gazetteer_recognizers

    # @param model_id [String, Pathname, NER, GLiNER, nil] a model or where to load it from; nil works without one
    # @param device [Device, String, Symbol, nil]
    # @param tokenizer [Tokenizer, String, nil]
    # @param labels [Array<String, Symbol>, String, Symbol, nil] what a {GLiNER} model looks for
    # @raise [ArgumentError] for labels without such a model, and for such a model without labels
    def initialize(model_id = nil, device: nil, tokenizer: nil, labels: nil)
      @model_ner = recognizer(model_id, labels, device: device, tokenizer: tokenizer)
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
    # @param confidence_threshold [Float, nil] for the model's entities; nil is 0.9, and 0.5 for {GLiNER}
    # @param aggregation [Symbol, String] as {NER#extract_entities} takes it
    # @return [Array<Hash>, Array<Array<Hash>>] as {NER#extract_entities} gives them; those of patterns and terms
    #   have a `source` and no tokens
    def extract_entities(input, confidence_threshold: nil, aggregation: :simple)
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
    # @param confidence_threshold [Float, nil] as {#extract_entities} takes it
    # @param aggregation [Symbol, String] as {NER#extract_entities} takes it
    # @return [String, Array<String>]
    # @raise [InvalidInputError] when labels is empty, or has a label that is not among {#entity_types}
    def redact(input, labels: nil, with: "[%{label}]", confidence_threshold: nil, aggregation: :first) # rubocop:disable Style/FormatStringToken
      redaction = Redaction.new(labels, with, known: entity_types)
      redaction.apply(*Arguments.texts(input)) { |texts| found_in(texts, confidence_threshold, aggregation) }
    end

    # @return [String] one line
    def inspect
      "#<Candle::HybridNER #{model_ner ? model_ner.model_id : "no model"}, #{pattern_recognizers.size} of patterns, " \
        "#{gazetteer_recognizers.size} of terms>"
    end

    private

    def recognizer(model, labels, **options)
      model = loaded(model, labels, options) unless NER === model || GLiNER === model
      if GLiNER === model
        raise ArgumentError, "a GLiNER model needs labels:, the kinds of entities to look for" if NilClass === labels

        return LabelRecognizer.new(model, Arguments.labels(labels))
      end
      raise ArgumentError, "labels: is for GLiNER models" unless NilClass === labels

      model
    end

    # Labels say that it is such a model.
    def loaded(source, labels, options)
      return if NilClass === source

      (NilClass === labels ? NER : GLiNER).from_pretrained(source, **options)
    end

    def recognizers
      pattern_recognizers + gazetteer_recognizers
    end

    # What the model and the recognizers find in each text, overlaps included.
    def found_in(texts, confidence_threshold, aggregation)
      confidence_threshold = THRESHOLDS[model_ner.class] if NilClass === confidence_threshold
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
