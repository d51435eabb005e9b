# frozen_string_literal: true

Candle::Native.complete(:GLiNER)

module Candle
  # Entities of any kind, by labels that a call names: "person", "order number", "side effect". Loads GLiNER checkpoints
  # with span and token heads, with one encoder for texts and labels or one for each, and GLiNER2 checkpoints, which
  # also take schemas: entities, structures, relations and labels of the whole text in one forward pass. The relex
  # checkpoints of GLiNER find entities and their relations at once.
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

    # The entities of a text, by their labels or by a schema. Texts of more words than {#max_words} are read in windows
    # that share words.
    #
    # @example
    #   gliner = Candle::GLiNER.from_pretrained("spec/fixtures/tiny/gliner2")
    #   schema = { entities: { animal: "what lives" }, classifications: { mood: %w[happy lazy] } }
    #   gliner.extract("the lazy dog", schema: schema).keys # => [:entities, :classifications]
    #
    # @param input [String, Array<String>]
    # @param labels [Array<String, Symbol>, String, Symbol] the kinds of entities, in plain words
    # @param schema [Hash] what a GLiNER2 checkpoint looks for, instead of labels:
    #   - `entities:` names, or names with a description or with `{description:, threshold:, type:, match:}`
    #   - `structures:` names with their fields: `{field => :string | :list | choices | description | {...}}`, or texts
    #     such as `"color::[red|blue]::of the car"`
    #   - `relations:` names, or names with a description or with `{description:, threshold:}`
    #   - `classifications:` names with labels, or with
    #     `{labels:, multi_label:, threshold:, top_k:, activation:, prompt:, examples:}`
    #   - `entity_attributes:` names with `{labels:, multi_label:, threshold:, applies_to:, qualify_labels:}`
    # @param relations [Array<String, Symbol>, String, Symbol, nil] kinds of relations between the entities, in plain
    #   words, for a relex checkpoint
    # @param relation_threshold [Float, nil] leave out relations whose score is not above this; nil is `threshold`
    # @param adjacency_threshold [Float, nil] leave out pairs of entities that have less to do with each other; nil is
    #   `threshold`
    # @param threshold [Float] leave out what has a lower score. A checkpoint that takes labels only leaves out equal
    #   scores, too
    # @param flat [Boolean] whether entities never overlap: the one with the higher score stays. Otherwise one may lie
    #   inside another. For labels
    # @param multi_label [Boolean] whether one entity may have several labels, and is listed with each. For labels
    # @param overlap [Symbol] which values of one field stay where they overlap, with a schema: `:best` takes the surest
    #   first, `:flat` those whose scores add up to most, `:nested` allows one inside another, `:longest` leaves out
    #   what lies inside another, `:allow` keeps all
    # @param window [Integer, nil] words that are read at once with a schema; nil reads a text as a whole where the
    #   model has room for it, and otherwise in windows of 384 words
    # @param window_overlap [Integer] how many words neighbouring windows share
    # @return [Array<Hash>, Array<Array<Hash>>] by labels `{text:, label:, score:, start:, end:}` in the order of the
    #   text, with character offsets, end excluded. One list for a String, one per text for an Array
    # @return [Hash, Array<Hash>] with `relations:` a Hash for each text: `entities:` as above, and `relations:` with
    #   `{relation:, score:, head:, tail:}`, whose head and tail are entities
    # @return [Hash, Array<Hash>] by a schema a Hash with the keys of the schema: `entities:` and `structures:` have
    #   values `{text:, score:, start:, end:}` by name (choices have no offsets), `relations:` lists of
    #   `{head:, tail:}`, `classifications:` one `{label:, score:}` or a list. The model reads a text without closing
    #   punctuation with a full stop, which may belong to a value
    # @raise [InvalidInputError] for what isn't a text, for no labels, and for labels that leave no room for the text
    # @raise [UnsupportedModelError] for a schema and a checkpoint that takes none, and for relations and a checkpoint
    #   without a head for them
    def extract(input, labels: nil, schema: nil, relations: nil, threshold: 0.5, relation_threshold: nil,
                adjacency_threshold: nil, flat: true, multi_label: false, overlap: :best, window: nil,
                window_overlap: SchemaExtraction::SHARED)
      texts, single = Arguments.texts(input)
      least = Arguments.fraction(threshold, "threshold")
      lists = if NilClass === schema
                asked = related_names(relations, relation_threshold || least, adjacency_threshold || least)
                by_labels(texts, Arguments.labels(labels), [least, flat ? true : false, multi_label ? true : false],
                          asked)
              else
                raise ArgumentError, "pass labels: or schema:, not both" unless NilClass === labels
                raise ArgumentError, "relations: belong to labels:, not schema:" unless NilClass === relations

                size = window_words(window, window_overlap)
                by_schema(texts, ExtractionSchema.new(schema), least, overlap_policy(overlap), size)
              end
      single ? lists.first : lists
    end

    # How well a text fits labels, by a GLiNER2 checkpoint.
    #
    # @example
    #   gliner = Candle::GLiNER.from_pretrained("spec/fixtures/tiny/gliner2")
    #   found = gliner.classify("the lazy dog", labels: %w[animal city], multi_label: false)
    #   found.sum { |entry| entry[:score] }.round(5) # => 1.0
    #
    # @param input [String, Array<String>]
    # @param labels [Array<String, Symbol>, Hash] names, or names with descriptions
    # @param task [String, Symbol] what the labels are: "sentiment", "topic". The model reads it
    # @param multi_label [Boolean] whether several labels may fit, each judged for itself; otherwise one of them does,
    #   and the scores add up to 1
    # @param threshold [Float] leave out labels with a lower score
    # @param top_k [Integer, nil] how many labels to return; nil is all
    # @return [Array<Hash>, Array<Array<Hash>>] `{label:, score:}`, best first. One list for a String, one per text for
    #   an Array. Of texts that are read in windows each label has its highest score
    # @raise [InvalidInputError] as {#extract}
    # @raise [UnsupportedModelError] for a checkpoint that takes no schema
    def classify(input, labels:, task: "category", multi_label: true, threshold: 0.0, top_k: nil)
      texts, single = Arguments.texts(input)
      least = Arguments.fraction(threshold, "threshold")
      top_k = Arguments.count(top_k, "top_k")
      name = Arguments.label(task, "task")
      asked = { labels: labels, multi_label: true, threshold: 0, activation: multi_label ? :sigmoid : :softmax }
      schema = ExtractionSchema.new({ classifications: { name => asked } })
      lists = by_schema(texts, schema, 0.5, :best, nil).map do |found|
        entries = found.fetch(:classifications).fetch(name)
        ranked = Arguments.ranked(*%i[label score].map { |key| entries.map { |entry| entry[key] } }, top_k)
        ranked.select { |entry| entry[:score] >= least }
      end
      single ? lists.first : lists
    end

    # The relations of a text's entities, by a checkpoint that was trained for it, such as gliner-multitask. Entities
    # are found first, and then what each of them stands in a relation to. A GLiNER2 checkpoint finds pairs at once, and
    # needs neither entities nor a prompt; the score is the lower one of the two. A relex checkpoint finds both at once,
    # by its own head, and needs no prompt; {#extract} says more of what it finds.
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
      if _takes_schema
        lists = pairs_by_schema(texts, kinds, Arguments.fraction(threshold, "threshold"))
        return single ? lists.first : lists
      end

      if _relates
        lists = pairs_by_head(texts, kinds, entities, threshold, entity_threshold)
        return single ? lists.first : lists
      end

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

    # @return [Integer, nil] how many words of a text are read at once; nil where only tokens are limited
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

    # @return [Array(Array<String>, Float, Float), nil] names, and the least scores of relations and of pairs
    def related_names(relations, threshold, adjacency_threshold)
      return if NilClass === relations

      [Arguments.labels(relations), Arguments.fraction(threshold, "relation_threshold"),
       Arguments.fraction(adjacency_threshold, "adjacency_threshold")]
    end

    def by_labels(texts, names, settings, related)
      return _extract(texts, names, settings, related) unless _takes_schema
      raise UnsupportedModelError, "a GLiNER2 checkpoint finds relations by schema: { relations: [...] }" if related

      threshold, flat, multi_label = settings
      found = by_schema(texts, ExtractionSchema.new({ entities: names }), threshold, :allow, nil)
      found.zip(texts).map do |result, text|
        entities = result[:entities].flat_map do |label, spans|
          spans.filter_map { |span| inside_text(span, text)&.then { |one| labelled(one, label) } }
        end
        SpanOverlaps.of_labels(entities, flat: flat, multi_label: multi_label)
      end
    end

    def labelled(span, label)
      { text: span[:text], label: label, score: span[:score], start: span[:start], end: span[:end] }
    end

    # Without the full stop that the model reads after the text; nil for that alone.
    def inside_text(span, text)
      return span if span[:end] <= text.size

      cut = text[span[:start]...].to_s.rstrip
      span.merge(text: cut, end: span[:start] + cut.size) unless cut.empty?
    end

    def by_schema(texts, schema, threshold, overlap, window)
      extraction = SchemaExtraction.new(schema, threshold: threshold, overlap: overlap, window: window,
                                                words: ->(text) { _words(text) },
                                                read: ->(*asked) { _extract_schema(*asked) })
      extraction.results(texts)
    end

    def overlap_policy(value)
      Arguments.choice(value, "overlap", SpanOverlaps::POLICIES)
    end

    def window_words(window, shared)
      size = Arguments.count(window, "window")
      return unless size

      shared = Arguments.integer(shared, "window_overlap")
      return [size, shared] if shared.between?(0, size - 1)

      raise ArgumentError, "window_overlap must be from 0 to #{size - 1}, fewer words than the window has"
    end

    def pairs_by_schema(texts, kinds, threshold)
      schema = ExtractionSchema.new({ relations: kinds })
      by_schema(texts, schema, threshold, :best, nil).zip(texts).map do |found, text|
        pairs = found[:relations].flat_map do |relation, instances|
          instances.filter_map do |instance|
            source, target = instance.values_at(:head, :tail).map { |span| inside_text(span, text) }
            next unless source && target

            { source: source[:text], relation: relation, target: target[:text],
              score: [source, target].map { |span| span[:score] }.min, start: target[:start], end: target[:end] }
          end
        end
        pairs.sort_by.with_index { |pair, index| [pair[:start], index] }
      end
    end

    def pairs_by_head(texts, kinds, entities, threshold, entity_threshold)
      found = extract(texts, labels: entities, relations: kinds, threshold: entity_threshold,
                             relation_threshold: threshold)
      found.map do |one|
        pairs = one[:relations].map do |related|
          source, target = related.values_at(:head, :tail)
          { source: source[:text], relation: related[:relation], target: target[:text], score: related[:score],
            start: target[:start], end: target[:end] }
        end
        pairs.sort_by.with_index { |pair, index| [pair[:start], index] }
      end
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
