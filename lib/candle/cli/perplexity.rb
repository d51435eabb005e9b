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
        model = load_model(:llm, source)
        other = options[:against] && load_model(:llm, options[:against])
        pieces = pieces(text, model, *other)
        @bar = Progress.for($stderr.tty?)
        @done = 0
        @total = pieces.size * (other ? 3 : 1)
        found = measure(model, pieces)
        result = summary(source, found)
        result = result.merge(comparison(model, other, pieces, found)) if other
        show(result) { puts lines(result) }
      end

      private

      # Pieces that fit the context of each model, each read alone.
      def pieces(text, *models)
        ids = models.first.tokenizer.encode(text)
        raise InvalidInputError, "perplexity needs a text of at least two tokens" if ids.size < 2

        length = models.map(&:context_length).min - ROOM
        ids.each_slice([length, 2].max).map { |piece| models.first.tokenizer.decode(piece) }
      end

      # What the block makes of each piece.
      def each_piece(pieces)
        pieces.map { |piece| yield(piece).tap { @bar&.call(@done += 1, @total) } }
      end

      # Tokens of a piece but the first have a log probability.
      def measure(model, pieces)
        each_piece(pieces) { |piece| model.logprobs(piece).filter_map { |token| token[:logprob] } }.flatten
      end

      def summary(source, logprobs)
        { model: source, tokens: logprobs.size, perplexity: Math.exp(-logprobs.sum / logprobs.size) }
      end

      def comparison(model, other, pieces, found)
        reference = measure(other, pieces)
        { against: summary(options[:against], reference), **difference(found, reference),
          **divergence(model, other, pieces) }
      end

      def difference(found, other)
        unless found.size == other.size
          raise InvalidInputError, "the models cut the text into other tokens: #{found.size} and #{other.size}"
        end

        changes = found.zip(other).map { |a, b| a - b }
        { ratio: Math.exp(-changes.sum / changes.size), mean_change: changes.sum(&:abs) / changes.size }
      end

      # Means of pieces, by their predictions.
      def divergence(model, other, pieces)
        parts = each_piece(pieces) do |piece|
          weight = model.tokenizer.encode(piece).size - 1
          [model.kl_divergence(piece, reference: other), weight] if weight.positive?
        end.compact
        mean = ->(key) { parts.sum { |part, weight| part[key] * weight } / parts.sum(&:last) }
        { kl_divergence: mean.call(:mean), max_kl_divergence: parts.map { |part, _| part[:max] }.max,
          same_token: mean.call(:same_token) }
      end

      def lines(result)
        models = [result, result[:against]].compact
        models = models.map do |one|
          format("%<model>s: perplexity %<perplexity>.4f over %<tokens>d tokens", one)
        end
        return models unless result[:ratio]

        models << format("ratio %<ratio>.5f, mean change of a token's log probability %<mean_change>.5f", result) <<
          format("KL divergence: mean %<kl_divergence>.5f, largest %<max_kl_divergence>.5f; " \
                 "the same likeliest token in %<share>.1f %%", share: 100 * result[:same_token], **result)
      end
    end
  end
end
