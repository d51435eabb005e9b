# frozen_string_literal: true

module Candle
  class CLI
    # `red-candle perplexity`: how well a model predicts a text, alone or beside another.
    #
    # @api private
    class Perplexity < Verb
      # Tokens that a piece may have more of when it is read alone.
      ROOM = 8
      private_constant :ROOM

      # @param source [String]
      # @param file [String] `-` is standard input
      # @return [void]
      def call(source, file)
        text = file == "-" ? $stdin.read : File.read(file, encoding: "UTF-8")
        found = measure(source, text)
        other = options[:against] && measure(options[:against], text)
        result = summary(source, found)
        result = result.merge(against: summary(options[:against], other), **difference(found, other)) if other
        show(result) { puts lines(result) }
      end

      private

      # Pieces that fit the context, each read alone; tokens of a piece but the first have a log probability.
      def measure(source, text)
        model = load_model(:llm, source)
        ids = model.tokenizer.encode(text)
        raise InvalidInputError, "perplexity needs a text of at least two tokens" if ids.size < 2

        pieces = ids.each_slice([model.context_length - ROOM, 2].max).map { |piece| model.tokenizer.decode(piece) }
        pieces.flat_map { |piece| model.logprobs(piece).filter_map { |token| token[:logprob] } }
      end

      def summary(source, logprobs)
        { model: source, tokens: logprobs.size, perplexity: Math.exp(-logprobs.sum / logprobs.size) }
      end

      def difference(found, other)
        unless found.size == other.size
          raise InvalidInputError, "the models cut the text into other tokens: #{found.size} and #{other.size}"
        end

        changes = found.zip(other).map { |a, b| a - b }
        { ratio: Math.exp(-changes.sum / changes.size), mean_change: changes.sum(&:abs) / changes.size }
      end

      def lines(result)
        models = [result, result[:against]].compact
        models = models.map do |one|
          format("%<model>s: perplexity %<perplexity>.4f over %<tokens>d tokens", one)
        end
        return models unless result[:ratio]

        models << format("ratio %<ratio>.5f, mean change of a token's log probability %<mean_change>.5f", result)
      end
    end
  end
end
