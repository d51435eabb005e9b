# frozen_string_literal: true

module Candle
  # What a model finds by a schema, out of the scores that it gives: {GLiNER#extract} with `schema:`.
  #
  # @api private
  class SchemaExtraction
    # Words of a window, and of those how many it shares with the next, where a text does not fit.
    WINDOW = 384
    SHARED = 64
    # The smallest window, in words.
    LEAST = 4
    # Results without a value.
    EMPTY = [nil, [], {}].freeze
    private_constant :LEAST, :EMPTY

    # @param schema [ExtractionSchema]
    # @param threshold [Float] of fields that have none
    # @param overlap [Symbol] one of {SpanOverlaps::POLICIES}
    # @param window [Array(Integer, Integer), nil] words of a window, and how many it shares with the next
    # @param words [#call] the places of a text's words
    # @param read [#call] what the model gives for texts, tasks, words before a text and the most words of one
    def initialize(schema, threshold:, overlap:, window:, words:, read:)
      @schema = schema
      @threshold = threshold
      @tasks = schema.native(threshold)
      @overlap = overlap
      @window = window
      @words = words
      @read = read
    end

    # @param texts [Array<String>]
    # @return [Array<Hash>] a result for each
    def results(texts)
      return texts.map { |text| in_windows(text, *@window) } if @window

      raw(texts, nil).zip(texts).map { |found, text| found ? result(found) : in_windows_that_fit(text) }
    end

    private

    def raw(texts, most)
      @read.call(texts, @tasks, [@schema.prefix, most])
    end

    # Halves windows until the model has room for them.
    def in_windows_that_fit(text)
      size = WINDOW
      while size >= LEAST
        found = in_windows(text, size, size * SHARED / WINDOW, fails: false)
        return found if found

        size /= 2
      end
      raise InvalidInputError, "the schema leaves no room for words of the text: ask for less at once"
    end

    def in_windows(text, size, shared, fails: true)
      windows = windows(text, size, shared)
      found = raw(windows.map { |first, last| text[first...last] }, size)
      if found.any?(&:nil?)
        raise InvalidInputError, "a window of #{size} words is too long for the model: make it smaller" if fails

        return
      end

      merged(found.zip(windows).map { |tasks, (first, _)| moved(result(tasks), text, first) })
    end

    # @return [Array<Array(Integer, Integer)>] characters of each window
    def windows(text, size, shared)
      words = @words.call(text)
      return [[0, text.size]] if words.empty?

      firsts = (0..).step(size - shared).lazy.map { |first| [first, [first + size, words.size].min] }
      all = firsts.take_while { |first, _| first.zero? || first + shared < words.size }
      all.map { |first, last| [words[first].first, words[last - 1].last] }.to_a
    end

    def result(found)
      parts = Hash.new { |hash, key| hash[key] = {} }
      @schema.tasks.zip(found) do |task, values|
        case task.kind
        when :structure then parts[:structures][task.name] = instances(task, values)
        when :entities then parts[:entities] = entities(task, values.first)
        when :relation then parts[:relations][task.name] = relations(task, values)
        else parts[:classifications][task.name] = labels(task, values)
        end
      end
      { entities: nil, structures: nil, relations: nil, classifications: nil }.merge(parts).compact
    end

    # A model that counts nothing has found no entities.
    def entities(task, found)
      fields = task.fields.reject(&:attribute)
      fields.each_with_index.to_h do |field, index|
        spans = chosen(field, found ? found[index] : [])
        spans = spans.map { |span| with_attributes(span, field.name) }
        [field.name, field.many ? spans : spans.first]
      end
    end

    def chosen(field, spans)
      spans = spans.select { |span| field.patterns.all? { |pattern| pattern.match?(span[:text]) } }
      spans = SpanOverlaps.resolve(spans, @overlap)
      field.many ? spans : spans.first(1)
    end

    def with_attributes(span, entity)
      return span if @schema.groups.empty?

      logits = span[:attributes]
      groups = @schema.groups.select { |group| group.entities.nil? || group.entities.include?(entity) }
      found = groups.to_h { |group| [group.name, attribute(group, logits.values_at(*group.indexes))] }
      span.except(:attributes).merge(attributes: found)
    end

    def attribute(group, logits)
      return Arguments.ranked(group.labels, softmax(logits)).first unless group.many

      each = group.labels.zip(logits).map { |label, logit| { label: label, score: sigmoid(logit) } }
      each.select { |entry| entry[:score] >= group.threshold }
    end

    def relations(task, instances)
      instances.filter_map do |found|
        head, tail = task.fields.zip(found).map { |field, spans| chosen(field, spans).first }
        { head: head, tail: tail } if head && tail
      end
    end

    def instances(task, instances)
      all = instances.map do |found|
        task.fields.zip(found).to_h { |field, values| [field.name, value(field, values)] }
      end
      all.reject { |instance| instance.values.all? { |value| EMPTY.include?(value) } }
    end

    def value(field, values)
      return choice(field, values) if field.choices

      spans = chosen(field, values)
      field.many ? spans : spans.first
    end

    def choice(field, scores)
      least = field.threshold || @threshold
      entries = field.choices.zip(scores).map { |text, score| { text: text, score: score } }
      return entries.select { |entry| entry[:score] >= least } if field.many

      best = surest(entries)
      best if best[:score] >= least
    end

    def labels(task, logits)
      scores = probabilities(logits, task.options)
      entries = task.fields.zip(scores).map { |field, score| { label: field.name, score: score } }
      best = surest(entries)
      return best unless task.options[:multi_label]

      fitting = entries.select { |entry| entry[:score] >= task.options[:threshold] }
      fitting = [best] if fitting.empty?
      top_k = task.options[:top_k] or return fitting
      fitting.sort_by.with_index { |entry, index| [-entry[:score], index] }.first(top_k)
    end

    def probabilities(logits, options)
      each = options[:activation] == :sigmoid || (options[:activation] == :auto && options[:multi_label])
      each ? logits.map { |logit| sigmoid(logit) } : softmax(logits)
    end

    # The first of those with the highest score.
    def surest(entries)
      entries.each_with_index.max_by { |entry, index| [entry[:score], -index] }.first
    end

    def sigmoid(logit)
      1.0 / (1.0 + Math.exp(-logit))
    end

    def softmax(logits)
      highest = logits.max
      weights = logits.map { |logit| Math.exp(logit - highest) }
      weights.map { |weight| weight / weights.sum }
    end

    # The same with offsets of the whole text.
    def moved(value, text, first)
      case value
      when Array then value.map { |inner| moved(inner, text, first) }
      when Hash
        inner = value.transform_values { |one| moved(one, text, first) }
        span?(inner) ? placed(inner, text, first) : inner
      else value
      end
    end

    def placed(span, text, first)
      start = span[:start] + first
      last = span[:end] + first
      span.merge(text: last <= text.size ? text[start...last] : span[:text], start: start, end: last)
    end

    def span?(value)
      Integer === value[:start] && Integer === value[:end]
    end

    # One result of those of windows.
    def merged(results)
      results.first.to_h do |part, first|
        names = first.keys
        joined = names.to_h { |name| [name, results.map { |result| result[part][name] }] }
        [part, joined.to_h { |name, values| [name, send(:"merged_#{part}", name, values)] }]
      end
    end

    def merged_entities(name, values)
      policy = @overlap == :best ? :flat : @overlap
      spans = SpanOverlaps.resolve(values.flat_map { |value| Array === value ? value : [value] }.compact, policy)
      spans = spans.sort_by { |span| span.values_at(:start, :end, :text) }
      many = @schema.tasks.find { |task| task.kind == :entities }.fields.find { |field| field.name == name }.many
      many ? spans : spans.first
    end

    def merged_structures(_, values)
      distinct(values.flatten(1))
    end
    alias merged_relations merged_structures

    def merged_classifications(_, values)
      Array === values.first ? distinct(values.flatten(1)) : surest(values)
    end

    # Each once, with the highest score; the score does not tell two apart.
    def distinct(items)
      items.each_with_object({}) do |item, kept|
        key = without_scores(item)
        kept[key] = item if !kept.key?(key) || score(item) > score(kept[key])
      end.values
    end

    def without_scores(value)
      case value
      when Array then value.map { |inner| without_scores(inner) }
      when Hash then value.except(:score).transform_values { |inner| without_scores(inner) }
      else value
      end
    end

    # The highest in it.
    def score(value)
      case value
      when Hash then value[:score] || value.values.map { |inner| score(inner) }.max || 0.0
      when Array then value.map { |inner| score(inner) }.max || 0.0
      else 0.0
      end
    end
  end
end
