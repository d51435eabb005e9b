# frozen_string_literal: true

module Candle
  # Generation that follows a schema or a pattern, as {LLM} does it.
  module StructuredOutput
    # Generates JSON that is valid by a schema, and parses it. Stop sequences do not count: the schema says where the
    # text ends.
    #
    # @example
    #   llm = Candle::LLM.from_pretrained("spec/fixtures/tiny/decoders/llama")
    #   schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"] }
    #   llm.generate_structured("the dog", schema: schema).keys # => ["ok"]
    # @param prompt [String, Array<Hash>, Array<String>] a prompt as it is, messages for the chat template, or many
    #   prompts, which are computed together
    # @param schema [Hash, String, Class, #to_json_schema] as {StructuredConstraint.from_schema} takes it
    # @param config [GenerationConfig, Hash]
    # @param whitespace [Symbol] `:compact`, or `:flexible` for line breaks and indentation where the model likes them
    # @param warn_on_parse_error [Boolean] accepted for the sake of 1.8: what was generated can always be parsed
    # @param options [Hash] as {LLM#generate} takes them
    # @param progress [Boolean, #call] for many prompts, as in {LLM#generate}
    # @yieldparam piece [String] the JSON as it comes
    # @return [Hash, Object, Array] what was generated, with String keys; an instance where a class was given; one for
    #   each of many prompts, in their order
    # @raise [StructuredOutputError] when `max_length` cuts the text off, with the text so far in `partial`
    # @raise [InvalidInputError] when the schema can't be enforced
    def generate_structured(prompt, schema:, config: GenerationConfig.balanced, whitespace: :compact,
                            warn_on_parse_error: true, progress: false, **options, &block) # rubocop:disable Lint/UnusedMethodArgument
      constraint = StructuredConstraint.from_schema(schema, whitespace: whitespace)
      if many?(prompt)
        options = following(constraint, config, options)
        return generate_all(prompt, progress, finish: ->(made) { constraint.parse(whole(made).text) }, **options)
      end

      constraint.parse(follow(prompt, constraint, config, options, &block).text)
    end

    # Generates a text that matches a pattern as a whole.
    #
    # @example
    #   llm = Candle::LLM.from_pretrained("spec/fixtures/tiny/decoders/llama")
    #   llm.generate_regex("the dog", pattern: /\d{3}-\d{4}/).match?(/\A\d{3}-\d{4}\z/) # => true
    # @param prompt [String, Array<Hash>]
    # @param pattern [Regexp, String]
    # @param config [GenerationConfig, Hash]
    # @param options [Hash] as {LLM#generate} takes them; `stop_on_match: false` lets the text go on while it may
    # @yieldparam piece [String] the text as it comes
    # @return [String]
    # @raise [StructuredOutputError] when `max_length` cuts the text off, with the text so far in `partial`
    # @raise [InvalidInputError] when the pattern can't be followed
    def generate_regex(prompt, pattern:, config: GenerationConfig.balanced, **options, &block)
      follow(prompt, StructuredConstraint.from_regex(pattern), config, options, &block).text
    end

    # @param schema [Hash, String, Class]
    # @return [StructuredConstraint] for `constraint:` of a {GenerationConfig}
    def constraint_from_schema(schema)
      StructuredConstraint.from_schema(schema)
    end

    # @param pattern [Regexp, String]
    # @return [StructuredConstraint] for `constraint:` of a {GenerationConfig}
    def constraint_from_regex(pattern)
      StructuredConstraint.from_regex(pattern)
    end

    private

    def follow(prompt, constraint, config, options, &block)
      whole(complete(prompt, **following(constraint, config, options), &block))
    end

    def following(constraint, config, options)
      config = constrained(config, constraint, options.delete(:constraint))
      { config: config, **options, include_prompt: false, debug_tokens: false, stop_sequences: [] }
    end

    def whole(completion)
      return completion unless completion.finish_reason == :length

      count = completion.usage.completion_tokens
      error = StructuredOutputError.new("the text was cut off after #{count} tokens, before it was complete; " \
                                        "raise max_length: (the text so far is in #partial)")
      error.partial = completion.text
      raise error
    end

    # The config with the constraint; one that it has already must be the same.
    def constrained(config, constraint, *others)
      config = GenerationConfig.wrap(config)
      [config.constraint, *others].compact.each do |other|
        next if StructuredConstraint.wrap(other) == constraint

        raise ArgumentError, "two constraints for one text: #{constraint.inspect} and #{other.inspect}; pass one"
      end
      config.with(constraint: constraint)
    end

    # The config that a call's own options make of one; `schema:` with `whitespace:`, `pattern:` and `grammar:` are
    # among them.
    def configured(config, options)
      constraints = options.slice(:schema, :pattern, :grammar).compact.map do |name, value|
        case name
        when :schema then StructuredConstraint.from_schema(value, **options.slice(:whitespace))
        when :pattern then StructuredConstraint.from_regex(value)
        else StructuredConstraint.from_grammar(value)
        end
      end
      fields = options.except(:schema, :whitespace, :pattern, :grammar)
      config = config.with(**fields) if fields.any?
      constraints.empty? ? config : constrained(config, *constraints)
    end
  end
end
