# frozen_string_literal: true

module Candle
  class Server
    # A plain service for embeddings of every kind, and entities for the page.
    #
    # @api private
    class EmbeddingService < API
      KINDS = [:embedding, *EmbeddingInputs::KINDS, :sparse, :late_interaction].freeze
      private_constant :KINDS

      # @param request [Request]
      # @return [Array] an answer of Rack
      def embed(request)
        entry = models.fetch(request.field("model", String, default: nil), *KINDS)
        work = work(request, entry)
        began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        vectors, tokens = compute(request, &work)
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

      private

      # @return [Proc] gives vectors, and how many tokens were read
      def work(request, entry)
        return texts_and_images(request, entry) if EmbeddingInputs::KINDS.include?(entry.kind)

        refuse(request, entry, "images")
        texts = texts(request.field("texts", Array), "texts").first
        return dense(request, entry, texts) if entry.kind == :embedding

        refuse(request, entry, "pooling", "normalize")
        task = request.field("task", "query", "document", default: nil)
        lambda do
          [entry.kind == :sparse ? weights(entry, texts, task) : per_token(entry, texts, task), count(entry, texts)]
        end
      end

      def dense(request, entry, texts)
        refuse(request, entry, "task")
        options = { pooling: request.field("pooling", String, default: nil),
                    normalize: request.field("normalize", true, false, default: nil) }
        -> { [entry.model.embed(texts, **options), texts.sum { |text| entry.model.count_tokens(text) }] }
      end

      # Texts first, then images.
      def texts_and_images(request, entry)
        refuse(request, entry, "pooling", "task", *("normalize" if entry.kind == :clip))
        images = request.field("images", Array, default: []).map { |image| { "image" => image } }
        given = [*request.field("texts", Array, default: []), *images]
        inputs = mixed_inputs(entry, given, images.empty? ? "texts" : "images")
        options = { normalize: request.field("normalize", true, false, default: nil) }.compact
        -> { inputs.embed(entry.model, **options) }
      end

      def weights(entry, texts, task)
        entry.model.embed(texts, as: :arrays, task: task)
      end

      def per_token(entry, texts, task)
        found = task == "query" ? entry.model.embed_query(texts) : entry.model.embed_document(texts)
        found.map(&:to_a)
      end

      def count(entry, texts)
        entry.model.tokenizer.encode_batch(texts).sum(&:size)
      end

      def refuse(request, entry, *names)
        name = names.find { |candidate| !request.json[candidate].nil? } or return
        raise invalid("#{name} is not for models of the kind #{entry.kind}", param: name)
      end
    end
  end
end
