# frozen_string_literal: true

module Candle
  # What {GLiNER#extract} is asked by a schema, read and checked: entities, structures, relations and classifications.
  # It takes the Hashes of the library gliner2 (`Schema.from_dict`) and shorter ones.
  #
  # @api private
  class ExtractionSchema
    # What a task finds: spans, one of several choices, or a label. `many` tells a list from one value.
    Field = Struct.new(:name, :description, :many, :threshold, :choices, :patterns, :attribute, keyword_init: true)
    # What is asked for together.
    Task = Struct.new(:kind, :name, :prompt, :fields, :options, keyword_init: true)
    # Labels that tell something of entities.
    Group = Struct.new(:name, :labels, :indexes, :many, :threshold, :entities, keyword_init: true)

    PARTS = %i[entities structures relations classifications entity_attributes].freeze
    TYPES = { "str" => false, "string" => false, "list" => true }.freeze
    ENTITY = %i[description threshold type dtype match].freeze
    FIELD = [*ENTITY, :name, :choices].freeze
    RELATION = %i[description threshold].freeze
    LABELS = %i[task labels multi_label threshold cls_threshold top_k activation class_act prompt examples].freeze
    GROUP = %i[labels multi_label threshold applies_to qualify_labels].freeze
    RESERVED = %w[text score confidence start end].freeze
    private_constant :TYPES, :ENTITY, :FIELD, :RELATION, :LABELS, :GROUP, :RESERVED

    # @return [Array<Task>] in the order in which the model reads them
    attr_reader :tasks
    # @return [Array<Group>]
    attr_reader :groups
    # @return [Array<String>] words that the model reads before the text: the choices
    attr_reader :prefix

    # @param schema [Hash]
    # @raise [ArgumentError] naming what it has no place for
    # @raise [InvalidInputError] when it asks for nothing
    def initialize(schema)
      parts = hash(schema, "schema", PARTS)
      @groups = []
      @tasks = [*structures(parts[:structures]), *entities(parts[:entities], parts[:entity_attributes]),
                *relations(parts[:relations]), *classifications(parts[:classifications])]
      raise InvalidInputError, "the schema is empty: name entities, structures, ..." if @tasks.empty?

      @prefix = @tasks.select { |task| task.kind == :structure }.flat_map { |task| choices_of(task) }
    end

    # @param threshold [Float] of fields that have none
    # @return [Array] as the native method takes them
    def native(threshold)
      tasks.map do |task|
        fields = task.fields.map do |field|
          places = field.choices&.map { |choice| place(choice) }
          [field.name, field.threshold || threshold, places, field.attribute ? true : false]
        end
        [task.kind.name, task.prompt, fields]
      end
    end

    private

    # Where a choice stands in the prefix: the first word that equals it.
    def place(choice)
      prefix.index { |word| word.downcase == choice.downcase }
    end

    def structures(value)
      named(value, "structures").map do |name, spec|
        fields = fields(name, spec)
        raise InvalidInputError, "the structure #{name.inspect} has no fields" if fields.empty?

        described = fields.reject { |field| field.description.to_s.empty? }
        Task.new(kind: :structure, name: name, prompt: with_descriptions(name, described), fields: fields)
      end
    end

    def fields(structure, spec)
      spec = inner_fields(structure, spec) if Hash === spec
      return spec.map { |name, config| field(name, config) } if Hash === spec

      list = Arguments.list(TextInput.text?(spec) || Symbol === spec ? [spec] : spec)
      unless Array === list
        raise ArgumentError, "structures: fields of #{structure.inspect} must be an Array or a Hash, not " \
                             "#{Arguments.shown(spec)}"
      end

      unique(list.map { |one| listed_field(one) }, "field")
    end

    # @return [Hash, Array] fields by name, or those that the library lists as `fields`
    def inner_fields(structure, spec)
      list = spec.fetch(:fields) { spec["fields"] }
      return spec unless Array === Arguments.list(list)

      other = spec.keys.find { |key| key.to_s != "fields" }
      return list unless other

      raise ArgumentError, "structures: #{other} of #{structure.inspect} is for another kind of checkpoint"
    end

    def listed_field(spec)
      return written_field(Arguments.label(spec, "a field")) unless Hash === spec

      config = hash(spec, "a field", FIELD)
      raise ArgumentError, "a field needs a name" unless config.key?(:name)

      field(config.delete(:name), config)
    end

    # A name, and after each `::` a type, choices as in `[a|b]`, or a description.
    def written_field(text)
      name, *parts = text.split("::")
      config = {}
      parts.each do |part|
        if TYPES.key?(part)
          config[:type] = part
        elsif part.start_with?("[") && part.end_with?("]")
          config[:choices] = part[1..-2].split("|").map(&:strip)
        else
          config[:description] = part
        end
      end
      config[:type] ||= "str" if config[:choices]
      field(name, config)
    end

    def field(name, spec)
      config = field_config(spec, "the field #{Arguments.shown(name)}")
      choices = Arguments.labels(config[:choices]) unless NilClass === config[:choices] || config[:choices] == []
      Field.new(name: nonempty(name, "a field"), choices: choices, **common(config))
    end

    def field_config(spec, what)
      case spec
      when nil then {}
      when Symbol then { type: spec }
      when Array then { choices: spec, type: "str" }
      when Hash then hash(spec, what, FIELD)
      else
        text = Arguments.label(spec, what)
        TYPES.key?(text) ? { type: text } : { description: text }
      end
    end

    def common(config)
      description = config[:description]
      { description: NilClass === description ? nil : Arguments.label(description, "description"),
        many: many(config), threshold: threshold(config[:threshold]), patterns: patterns(config[:match]) }
    end

    def many(config)
      type = config.fetch(:type) { config.fetch(:dtype, "list") }
      TYPES.fetch(type.to_s) { raise ArgumentError, "type must be :string or :list, not #{Arguments.shown(type)}" }
    end

    def threshold(value)
      NilClass === value ? nil : Arguments.fraction(value, "threshold")
    end

    def patterns(value)
      list = Regexp === value ? [value] : Array(value)
      odd = list.find { |pattern| !(Regexp === pattern) }
      raise ArgumentError, "match must be a Regexp, not #{Arguments.shown(odd)}" if odd

      list
    end

    def entities(value, attributes)
      fields = named(value, "entities").map do |name, spec|
        config = String === spec ? { description: spec } : hash(spec || {}, "the entity #{name.inspect}", ENTITY)
        Field.new(name: name, **common(config))
      end
      if fields.empty?
        raise ArgumentError, "entity_attributes needs entities" unless NilClass === attributes

        return []
      end

      described = fields.select(&:description)
      all = fields + attributes(attributes, fields.map(&:name))
      [Task.new(kind: :entities, name: "entities", prompt: with_descriptions("entities", described), fields: all)]
    end

    # @return [Array<Field>] what the model is asked for the attributes of entities
    def attributes(value, entities)
      asked = named(value, "entity_attributes").map { |name, spec| attribute_group(name, spec, entities) }
      names = asked.flat_map(&:last).sort
      check_attributes(asked.flat_map { |group, _| group.labels }, names & entities)
      @groups = asked.map do |group, prompts|
        group.tap { group.indexes = prompts.map { |prompt| names.index(prompt) } }
      end
      names.map { |name| Field.new(name: name, many: true, patterns: [], attribute: true) }
    end

    def check_attributes(labels, taken)
      raise ArgumentError, "entity_attributes: a label is in two groups" if labels.uniq.size < labels.size
      return if taken.empty?

      raise ArgumentError, "entity_attributes: #{taken.first.inspect} is an entity: use qualify_labels: true"
    end

    def attribute_group(name, spec, entities)
      config = hash(spec, "the attributes #{name.inspect}", GROUP)
      raise ArgumentError, "entity_attributes: #{name.inspect} is a key of entities" if RESERVED.include?(name)

      labels = Arguments.labels(config.fetch(:labels, []))
      only = NilClass === config[:applies_to] ? nil : Arguments.known_labels(config[:applies_to], entities)
      group = Group.new(name: name, labels: labels, many: config[:multi_label] ? true : false, entities: only,
                        threshold: threshold(config[:threshold]) || 0.5)
      [group, labels.map { |label| config[:qualify_labels] ? "#{name}: #{label}" : label }]
    end

    def relations(value)
      named(value, "relations").map do |name, spec|
        config = String === spec ? { description: spec } : hash(spec || {}, "the relation #{name.inspect}", RELATION)
        limit = threshold(config[:threshold])
        fields = %w[head tail].map { |end_| Field.new(name: end_, many: false, threshold: limit, patterns: []) }
        prompt = config[:description] ? Arguments.label(config[:description], "description") : ""
        Task.new(kind: :relation, name: name, prompt: prompt.empty? ? name : "#{name}: #{prompt}", fields: fields)
      end
    end

    def classifications(value)
      tasks = NilClass === value ? [] : classification_specs(value)
      unique(tasks.map { |name, config| classification(name, config) }, "classification")
    end

    def classification_specs(value)
      return value.map { |name, spec| [name, classification_config(spec)] } if Hash === value

      list = Arguments.list(value)
      unless Array === list
        raise ArgumentError, "classifications must be a Hash or an Array, not #{Arguments.shown(value)}"
      end

      list.map do |spec|
        config = hash(spec, "a classification", LABELS)
        [config.fetch(:task) { raise ArgumentError, "a classification needs a task, its name" }, config]
      end
    end

    def classification_config(spec)
      return { labels: spec } unless Hash === spec && spec.keys.any? { |key| key.to_s == "labels" }

      hash(spec, "a classification", LABELS)
    end

    def classification(name, config)
      name = nonempty(name, "a classification")
      labels = label_fields(config[:labels])
      options = {
        multi_label: config[:multi_label] ? true : false,
        threshold: threshold(config.fetch(:threshold) { config[:cls_threshold] }) || 0.5,
        top_k: Arguments.count(config[:top_k], "top_k"),
        activation: Arguments.choice(config.fetch(:activation) { config[:class_act] } || :auto, "activation",
                                     %i[auto sigmoid softmax])
      }
      Task.new(kind: :labels, name: name, prompt: label_prompt(name, labels, config), fields: labels, options: options)
    end

    def label_fields(labels)
      described = Hash === labels ? labels.transform_keys { |key| Arguments.label(key, "labels") } : {}
      names = Arguments.labels(Hash === labels ? labels.keys : labels)
      names.map do |name|
        text = said(described[name], "description") if described.key?(name)
        Field.new(name: name, description: text, many: true, patterns: [])
      end
    end

    def said(text, what)
      NilClass === text ? "" : Arguments.label(text, what)
    end

    def label_prompt(name, labels, config)
      asked = said(config[:prompt], "prompt")
      prompt = with_descriptions(asked.empty? ? name : "#{name}: #{asked}", labels.select(&:description))
      names = labels.map(&:name)
      examples = examples(config[:examples]).select { |_, label| names.include?(label) }
      examples.inject(prompt) { |text, (example, label)| "#{text} [EXAMPLE] #{example} [OUTPUT] #{label}" }
    end

    def examples(value)
      list = NilClass === value ? [] : Arguments.list(value)
      list = list.to_a if Hash === list
      pairs = Array === list && list.all? { |pair| Array === pair && pair.size == 2 }
      raise ArgumentError, "examples must be pairs of a text and a label" unless pairs

      list.map { |pair| pair.map { |text| Arguments.label(text, "examples") } }
    end

    def with_descriptions(prompt, fields)
      fields.inject(prompt) { |text, field| "#{text} [DESCRIPTION] #{field.name}: #{field.description}" }
    end

    # What the model reads of a structure's choices before the text.
    def choices_of(task)
      fields = task.fields.select(&:choices)
      return [] if fields.empty?

      inner = fields.flat_map do |field|
        [field.name, "(", *field.choices.flat_map { |choice| ["|", choice] }.drop(1), ")", ","]
      end
      ["(", "#{task.name}:", *inner[..-2], ")"]
    end

    # @return [Array<Array(String, Object)>] names, and what is said of each
    def named(value, what)
      return [] if NilClass === value

      pairs = Hash === value ? value.to_a : Arguments.labels(value).map { |name| [name, nil] }
      pairs = pairs.map { |name, spec| [nonempty(name, what), spec] }
      raise ArgumentError, "#{what}: a name is given twice" if pairs.uniq(&:first).size < pairs.size

      pairs
    end

    def nonempty(name, what)
      text = Arguments.label(name, what)
      text.empty? ? raise(ArgumentError, "#{what} must have a name") : text
    end

    def unique(list, what)
      twice = list.group_by(&:name).values.find { |same| same.size > 1 }
      return list unless twice

      raise ArgumentError, "the #{what} #{twice.first.name.inspect} is given twice"
    end

    # @return [Hash{Symbol => Object}]
    def hash(value, what, known)
      raise ArgumentError, "#{what} must be a Hash, not #{Arguments.shown(value)}" unless Hash === value

      named = value.transform_keys { |key| Arguments.label(key, what).to_sym }
      unknown = named.keys - known
      return named if unknown.empty?

      raise ArgumentError, "#{what} has the unknown key #{unknown.first.inspect}; known are #{known.join(", ")}"
    end
  end
end
