# frozen_string_literal: true

module Candle
  # Speculative decoding for {LLM}: several drafted tokens are verified in one forward pass. Every token is still the
  # model's own choice, so drafts change the time and never the text.
  module Speculation
    # Where drafts come from; false turns drafting off.
    WAYS = [:lookup, :draft, false].freeze
    private_constant :WAYS

    # Gives the class methods to the class.
    def self.included(base)
      base.extend(Loading)
    end

    # @example
    #   llm = Candle::LLM.from_pretrained("spec/fixtures/tiny/decoders/llama",
    #                                     draft: "spec/fixtures/tiny/gguf-decoders/llama")
    #   llm.draft.class # => Candle::LLM
    #   llm.generate("the dog", temperature: 0) == llm.generate("the dog", temperature: 0, speculative: false) # => true
    #
    # @return [LLM, nil] the draft model. After it is closed, this model generates without drafts
    attr_reader :draft

    # Frees the weights, and those of a {#draft} that was loaded with the model.
    #
    # @return [nil]
    # @see Model#close
    def close
      super
      draft.close if @owns_draft
    end

    # @api private
    def own_draft
      @owns_draft = true
    end

    # Class methods of a class with speculative decoding.
    #
    # @api private
    module Loading
      private

      # Yields the draft model, which is loaded unless it is one already.
      def with_draft(given, **settings)
        return yield(given) if given.nil? || given.is_a?(LLM)
        unless given.is_a?(String) || given.respond_to?(:to_path)
          raise ArgumentError, "draft must be a model, an id or a path, not #{Arguments.shown(given)}"
        end

        draft = from_pretrained(given, **settings)
        yield(draft).tap(&:own_draft)
      rescue Exception # rubocop:disable Lint/RescueException
        draft&.close
        raise
      end
    end

    private

    # What the engine calls it.
    def speculation(speculative)
      return draft && !draft.closed? ? "draft" : "none" if speculative.nil?

      way = speculative && Arguments.choice(speculative, "speculative", WAYS)
      if way == :draft && draft.nil?
        raise ArgumentError, "speculative: :draft needs a draft model: load this one with draft:"
      end

      way ? way.to_s : "none"
    end
  end
end
