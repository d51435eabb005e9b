# frozen_string_literal: true

module Candle
  class Server
    # A plain service for embeddings, and entities for the page.
    #
    # @api private
    class EmbeddingService < API
      # @param request [Request]
      # @return [Array] an answer of Rack
      def embed(request)
        entry = models.fetch(request.field("model", String, default: nil), :embedding)
        texts = texts(request.field("texts", Array), "texts").first
        options = { pooling: request.field("pooling", String, default: nil),
                    normalize: request.field("normalize", true, false, default: nil) }
        began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        vectors, tokens = compute(request) do
          [entry.model.embed(texts, **options), texts.sum { |text| entry.model.count_tokens(text) }]
        end
        count_tokens(entry, input: tokens)
        elapsed = ((Process.clock_gettime(Process::CLOCK_MONOTONIC) - began) * 1000).round(3)
        json({ embeddings: vectors, dimension: entry.model.dimension,
               usage: { total_tokens: tokens, duration_ms: elapsed } })
      end

      # @param request [Request]
      # @return [Array] an answer of Rack
      def entities(request)
        entry = models.fetch(request.field("model", String, default: nil), :ner)
        texts = texts(request.field("texts", String, Array), "texts").first
        threshold = request.field("confidence_threshold", Numeric, default: 0.5)
        found = compute(request) { entry.model.extract_entities(texts, confidence_threshold: threshold) }
        json({ entities: found })
      end
    end
  end
end
