# frozen_string_literal: true

Candle::Native.complete(:NER)

module Candle
  # Named entities in texts, found by any encoder or decoder with a token-classification head.
  #
  # @example
  #   ner = Candle::NER.from_pretrained("spec/fixtures/tiny/bert-token")
  #   text = "the dog live in Paris"
  #   entity = ner.extract_entities(text, confidence_threshold: 0).first
  #   text[entity[:start]...entity[:end]] == entity[:text] # => true
  class NER
    include Model
    include Statistics

    # How the tokens of a word and of an entity come to one label, as Hugging Face names it.
    AGGREGATIONS = %i[none simple first average max].freeze

    # What stands before the kind of an entity in a label: begin, inside, end, last, single, unit, middle.
    PREFIX = /\A[BIELSUM][-_]/

    class << self
      # @return [Hash{Symbol => Hash}] models for several domains, `{model:, note:}` each
      def suggested_models
        {
          general: { model: "Babelscape/wikineural-multilingual-ner",
                     note: "nine languages; persons, organizations, places, others; has its own tokenizer" },
          general_alt: { model: "dslim/bert-base-NER", note: "English; persons, organizations, places, others" },
          multilingual: { model: "Davlan/bert-base-multilingual-cased-ner-hrl", note: "ten languages" },
          biomedical: { model: "d4data/biomedical-ner-all", note: "diseases, drugs, procedures" },
          clinical: { model: "samrawal/bert-base-uncased_clinical-ner", note: "problems, tests, treatments" },
          scientific: { model: "jsylee/scibert_scivocab_uncased-finetuned-ner", note: "drugs and their effects" }
        }
      end
    end

    # The entities of a text. Texts beyond the model's length are read in overlapping windows.
    #
    # @param input [String, Array<String>]
    # @param confidence_threshold [Float] leave out entities below this
    # @param aggregation [Symbol, String] one of {AGGREGATIONS}, with Hugging Face's meaning. `:none` returns each token
    #   by itself. `:simple` joins neighbouring tokens of one kind, and may split a word ("Pri", "ya"). The others keep
    #   words whole: a word gets the label of its first token (`:first`), of the highest mean probability
    #   (`:average`), or of its surest token (`:max`)
    # @return [Array<Hash>, Array<Array<Hash>>] `{text:, label:, start:, end:, confidence:, token_start:, token_end:}`
    #   in the order of the text; `start` and `end` count characters, so that `text[start...end]` is the entity, and
    #   `token_start` and `token_end` likewise count the tokens of `tokenizer.encode(text)`. One list for a String,
    #   one per text for an Array
    # @raise [InvalidInputError] for what isn't a text, naming its index
    def extract_entities(input, confidence_threshold: 0.9, aggregation: :simple)
      texts, single = Arguments.texts(input)
      settings = { threshold: Arguments.fraction(confidence_threshold, "confidence_threshold"),
                   aggregation: Arguments.choice(aggregation, "aggregation", AGGREGATIONS).to_s }
      lists = _extract(texts, settings)
      single ? lists.first : lists
    end

    # What the model makes of each token; special ones are left out.
    #
    # @param text [String]
    # @return [Array<Hash{String => Object}>] `"token"`, `"label"`, `"confidence"`, `"index"`, `"start"`, `"end"` and
    #   `"probabilities"` (label to Float)
    def predict_tokens(text)
      names = _labels
      _tokens(TextInput.utf8(text)).map do |token, _, index, first, last, probabilities|
        confidence = probabilities.max
        { "token" => token, "label" => names[probabilities.index(confidence)], "confidence" => confidence,
          "index" => index, "start" => first, "end" => last, "probabilities" => names.zip(probabilities).to_h }
      end
    end

    # @return [Hash{String => Object}] `"id2label"`, `"label2id"` and `"num_labels"`
    def labels
      names = _labels
      { "id2label" => names.each_with_index.to_h { |name, id| [id, name] },
        "label2id" => names.each_with_index.to_h, "num_labels" => names.size }
    end

    # @return [Array<String>] the kinds of entities that the model knows, sorted
    def entity_types
      looked_up(:entity_types) { (_labels - ["O"]).map { |label| label.sub(PREFIX, "") }.uniq.sort.freeze }
    end

    # @param entity_type [String, Symbol] in any case
    # @return [Boolean] whether the model knows such entities
    def supports_entity?(entity_type)
      name = entity_type.to_s if String === entity_type || Symbol === entity_type
      !name.nil? && entity_types.any? { |known| known.casecmp?(name) }
    end

    # @param text [String, Array<String>]
    # @param entity_type [String, Symbol] in any case
    # @param options [Hash] as {#extract_entities} takes them
    # @return [Array<Hash>, Array<Array<Hash>>] the entities of one kind
    def extract_entity_type(text, entity_type, **options)
      found = extract_entities(text, **options)
      of_type = ->(entities) { entities.select { |entity| entity[:label].sub(PREFIX, "").casecmp?(entity_type.to_s) } }
      TextInput.text?(text) ? of_type.call(found) : found.map(&of_type)
    end

    # @param text [String]
    # @param options [Hash] as {#extract_entities} takes them
    # @return [Hash] `{entities:, tokens:}`
    def analyze(text, **options)
      { entities: extract_entities(TextInput.utf8(text), **options), tokens: predict_tokens(text) }
    end

    # @example
    #   ner = Candle::NER.from_pretrained("spec/fixtures/tiny/bert-token")
    #   ner.format_entities("hello world", confidence_threshold: 1) # => "hello world"
    #
    # @param text [String]
    # @param options [Hash] as {#extract_entities} takes them
    # @return [String] the text with `[LABEL:confidence]` after each entity
    def format_entities(text, **options)
      result = TextInput.utf8(text).dup
      extract_entities(text, **options).reverse_each do |entity|
        result.insert(entity[:end], "[#{entity[:label]}:#{entity[:confidence].round(2)}]")
      end
      result
    end

    # Replaces entities, such as the names in a text that is passed on. A word is replaced as a whole, also where only
    # a part of it was recognized.
    #
    # @example
    #   ner = Candle::NER.from_pretrained("spec/fixtures/tiny/bert-token")
    #   ner.redact("hello world", confidence_threshold: 1) # => "hello world"
    #   ner.redact("hello world", labels: ["PERSON"], confidence_threshold: 1) # => "hello world"
    #
    # @param input [String, Array<String>]
    # @param labels [Array<String, Symbol>, String, Symbol, nil] the kinds to replace, in any case; common synonyms
    #   stand for the model's own label (`"PERSON"` for `"PER"`); nil is all
    # @param with [String, #call] what stands in their place: `%{label}` and `%{text}` are filled in; a Proc gets the
    #   entity
    # @param aggregation [Symbol, String] as {#extract_entities} takes it
    # @param options [Hash] as {#extract_entities} takes them
    # @return [String, Array<String>] one text for a String, one per text for an Array
    # @raise [InvalidInputError] when labels is empty, or has a label that the model does not know
    def redact(input, labels: nil, with: "[%{label}]", aggregation: :first, **options) # rubocop:disable Style/FormatStringToken
      redaction = Redaction.new(labels, with, known: entity_types)
      redaction.apply(*Arguments.texts(input)) { |texts| extract_entities(texts, aggregation: aggregation, **options) }
    end

    private

    def smoke_test
      predict_tokens("a")
    end
  end
end
