# frozen_string_literal: true

Candle::Native.complete(:GLiNER)

module Candle
  # Entities of any kind, by labels that a call names: "person", "order number", "side effect". Loads GLiNER checkpoints
  # with span and token heads, with one encoder for texts and labels or one for each.
  #
  # @example
  #   gliner = Candle::GLiNER.from_pretrained("spec/fixtures/tiny/gliner")
  #   text = "the quick dog live in paris"
  #   entity = gliner.extract(text, labels: %w[animal city], threshold: 0).first
  #   text[entity[:start]...entity[:end]] == entity[:text] # => true
  class GLiNER
    include Model
    include Statistics

    # What stands before a text whose relations are looked for, as gliner-multitask was trained.
    RELATION_PROMPT = "Extract relationships between entities from the text: "

    # The entities of a text. Texts of more words than {#max_words} are read in windows that share words.
    #
    # @param input [String, Array<String>]
    # @param labels [Array<String, Symbol>, String, Symbol] the kinds of entities, in plain words
    # @param threshold [Float] leave out entities whose score is not above this
    # @param flat [Boolean] whether entities never overlap: the one with the higher score stays. Otherwise one may lie
    #   inside another
    # @param multi_label [Boolean] whether one entity may have several labels, and is listed with each
    # @return [Array<Hash>, Array<Array<Hash>>] `{text:, label:, score:, start:, end:}` in the order of the text, with
    #   character offsets, end excluded. One list for a String, one per text for an Array
    # @raise [InvalidInputError] for what isn't a text, for no labels, and for labels that leave no room for the text
    def extract(input, labels:, threshold: 0.5, flat: true, multi_label: false)
      texts, single = Arguments.texts(input)
      settings = [Arguments.fraction(threshold, "threshold"), flat ? true : false, multi_label ? true : false]
      lists = _extract(texts, Arguments.labels(labels), settings)
      single ? lists.first : lists
    end

    # The relations of a text's entities, by a checkpoint that was trained for it, such as gliner-multitask. Entities
    # are found first, and then what each of them stands in a relation to.
    #
    # @example
    #   gliner = Candle::GLiNER.from_pretrained("spec/fixtures/tiny/gliner")
    #   found = gliner.relations("a happy dog in paris", relations: ["lives in"], threshold: 0.4)
    #   found.all? { |relation| relation[:relation] == "lives in" } # => true
    #
    # @param input [String, Array<String>]
    # @param relations [Array<String, Symbol>, String, Symbol] the kinds of relations, in plain words
    # @param entities [Array<String, Symbol>, String, Symbol] the kinds of entities that may be sources
    # @param threshold [Float] leave out relations whose score is not above this
    # @param entity_threshold [Float] the same for entities
    # @param prompt [String] what stands before the text
    # @return [Array<Hash>, Array<Array<Hash>>] `{source:, relation:, target:, score:, start:, end:}` in the order of
    #   the targets in the text, with their character offsets. One list for a String, one per text for an Array
    # @raise [InvalidInputError] as {#extract}; many entities and relations leave no room for the text
    def relations(input, relations:, entities: ["named entity"], threshold: 0.5, entity_threshold: 0.5,
                  prompt: RELATION_PROMPT)
      texts, single = Arguments.texts(input)
      kinds = Arguments.labels(relations)
      before = "#{TextInput.utf8(prompt, "prompt")} \n "
      sources = extract(texts, labels: entities, threshold: entity_threshold)
      lists = texts.zip(sources).map do |text, found|
        related(before, text, pairs(found, kinds), threshold)
      end
      single ? lists.first : lists
    end

    # Replaces entities, such as the names in a text that is passed on. A word is replaced as a whole, and entities that
    # overlap are replaced together.
    #
    # @example
    #   gliner = Candle::GLiNER.from_pretrained("spec/fixtures/tiny/gliner")
    #   gliner.redact("hello world", labels: %w[person city], threshold: 1) # => "hello world"
    #
    # @param input [String, Array<String>]
    # @param labels [Array<String, Symbol>, String, Symbol] the kinds of entities to replace
    # @param with [String, #call] what stands in their place: `%{label}` and `%{text}` are filled in; a Proc gets the
    #   entity
    # @param threshold [Float] as {#extract} takes it
    # @return [String, Array<String>] one text for a String, one per text for an Array
    # @raise [InvalidInputError] as {#extract}
    def redact(input, labels:, with: "[%{label}]", threshold: 0.5) # rubocop:disable Style/FormatStringToken
      names = Arguments.labels(labels)
      redaction = Redaction.new(nil, with, known: names)
      redaction.apply(*Arguments.texts(input)) do |texts|
        LabelRecognizer.new(self, names).extract_entities(texts, confidence_threshold: threshold, flat: false)
      end
    end

    # @return [Integer] how many words of a text are read at once
    def max_words
      _limits.first
    end

    # @return [Integer] how many words an entity has at most, where the model judges spans
    def max_width
      _limits.last
    end

    # @return [Integer] how many tokens are read at once, those of labels and special ones included
    def max_length
      model_info.fetch(:max_length)
    end

    private

    def smoke_test
      extract("a", labels: ["a"])
    end

    # @return [Hash{String => Array(String, String)}] sources and relations by what the model is asked for
    def pairs(found, kinds)
      sources = found.map { |entity| entity[:text] }.uniq
      kinds.product(sources).to_h { |kind, source| ["#{source} <> #{kind}", [source, kind]] }
    end

    def related(before, text, pairs, threshold)
      return [] if pairs.empty?

      extract(before + text, labels: pairs.keys, threshold: threshold).filter_map do |entity|
        first = entity[:start] - before.size
        next if first.negative?

        source, relation = pairs.fetch(entity[:label])
        { source: source, relation: relation, target: entity[:text].strip, score: entity[:score], start: first,
          end: entity[:end] - before.size }
      end
    end
  end
end
