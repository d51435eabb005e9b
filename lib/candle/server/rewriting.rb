# frozen_string_literal: true

module Candle
  class Server
    # One answer of a model that reads a text and writes another: a translation, a summary, or whatever it was trained
    # for.
    #
    # @api private
    class Rewriting < Generation
      # What a request may say beside the fields that all models know, and what each may be.
      KINDS = { "task" => [String], "from" => [String], "to" => [String], "num_beams" => [1..64],
                "length_penalty" => [Numeric], "early_stopping" => [true, false, "never"],
                "no_repeat_ngram_size" => [0..65_535], "min_length" => [0..65_535] }.freeze
      # Their names.
      FIELDS = KINDS.keys.freeze
      private_constant :KINDS

      # @param entry [Models::Entry]
      # @param input [String, Array<Hash>] a text, or messages, of which the user's last one is read
      # @param options [Hash] fields of {GenerationConfig}; what is not given is as the checkpoint says
      # @param metrics [Metrics]
      # @param fields [Hash{String => Object}] some of {FIELDS}
      # @param max_tokens [Integer] what a text may have at most where its length is not given
      # @param schema [Hash, nil] a JSON schema that the text must follow
      def initialize(entry, input, options:, metrics:, fields:, max_tokens:, schema: nil)
        super(entry, text_of(input), options: options, metrics: metrics, schema: schema)
        @own = fields.slice(*FIELDS).compact.each { |name, value| check(name, value) }.transform_keys(&:to_sym)
        @max_tokens = max_tokens
      end

      # @param texts [Array<String>] instead of the one it was made for
      # @return [Array<Completion>] what becomes of each, all of them computed together
      def all(texts)
        @entry.model.complete(texts, **settings(0)).each { |completion| count(completion) }
      end

      # @return [Integer] how many tokens the model is to read
      def prompt_tokens
        @entry.model.count_tokens(@input, **@own.slice(:task, :from, :to))
      end

      private

      def check(name, value)
        kinds = KINDS.fetch(name)
        return if kinds.any? { |kind| kind.is_a?(Range) ? value.is_a?(Integer) && kind.cover?(value) : kind === value } # rubocop:disable Style/CaseEquality

        range = kinds.first if kinds.first.is_a?(Range)
        wanted = range ? "must be from #{range.min} to #{range.max}" : "has the wrong type"
        raise Problem.new(400, "invalid_request", "#{name} #{wanted}", param: name)
      end

      def text_of(input)
        return input if input.is_a?(String)

        message = input.reverse.find { |candidate| candidate[:role] == "user" }
        return message[:content] if message

        raise Problem.new(400, "invalid_request", "there is no message of the user", param: "messages")
      end

      def write(seed_offset, &block)
        @entry.model.complete(@input, **settings(seed_offset), &block)
      end

      def settings(seed_offset)
        usual = @entry.model.usual_length(**@own.slice(:task, :from, :to))
        { max_length: [usual, @max_tokens].min, **sampling(seed_offset), **@own, **constraint }
      end
    end
  end
end
