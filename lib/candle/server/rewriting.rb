# frozen_string_literal: true

module Candle
  class Server
    # One answer of a model that reads a text and writes another: a translation, a summary, or whatever it was trained
    # for.
    #
    # @api private
    class Rewriting < Generation
      # What a request may say beside the fields that all models know.
      FIELDS = %w[task from to num_beams length_penalty early_stopping no_repeat_ngram_size min_length].freeze

      # @param entry [Models::Entry]
      # @param input [String, Array<Hash>] a text, or messages, of which the user's last one is read
      # @param options [Hash] fields of {GenerationConfig}; what is not given is as the checkpoint says
      # @param metrics [Metrics]
      # @param fields [Hash{String => Object}] some of {FIELDS}
      # @param max_tokens [Integer] what a text may have at most where its length is not given
      # @param schema [Hash, nil] a JSON schema that the text must follow
      def initialize(entry, input, options:, metrics:, fields:, max_tokens:, schema: nil)
        super(entry, text_of(input), options: options, metrics: metrics, schema: schema)
        @own = fields.slice(*FIELDS).compact.transform_keys(&:to_sym)
        @max_tokens = max_tokens
      end

      # @param texts [Array<String>] instead of the one it was made for
      # @return [Array<Completion>] what becomes of each, all of them computed together
      def all(texts)
        @entry.model.complete(texts, **settings(0)).each { |completion| count(completion) }
      end

      private

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
