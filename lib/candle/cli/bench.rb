# frozen_string_literal: true

module Candle
  class CLI
    # `red-candle bench`: how fast one model is here, on texts of about 16 and 128 words or on one generation after the
    # other.
    #
    # @api private
    class Bench < Verb
      WORDS = %w[the quick brown fox jumps over a lazy dog near some river bank while seven small birds sing].freeze
      private_constant :WORDS

      # @param source [String]
      # @return [void]
      def call(source)
        kind = ModelKind.of(source)
        model = load_model(kind, source).warm_up
        result = { source: source, kind: kind, device: model.device.to_s, dtype: model.dtype.to_s }
                 .merge(kind == :llm ? generation(model) : encoding(kind, model))
        show(result) { Terminal.table(result.map { |name, value| [name.to_s.tr("_", " "), value] }) }
      end

      private

      def generation(model)
        config = GenerationConfig.deterministic(max_length: 64)
        runs = repeat do
          model.clear_cache
          model.complete(WORDS.first(4).join(" "), config: config)
        end
        timings = runs.map(&:timings)
        { runs: runs.size, tokens_per_second: mean(timings.map(&:tokens_per_second)),
          first_token_ms: mean(timings.map(&:first_token_ms)) }
      end

      def encoding(kind, model)
        { 16 => :short_texts_per_second, 128 => :long_texts_per_second }.to_h do |words, name|
          texts = Array.new(32) { |index| WORDS.rotate(index).cycle.first(words).join(" ") }
          began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
          runs = repeat(options[:seconds] / 2.0) { compute(kind, model, texts) }
          [name, (runs.size * texts.size / (Process.clock_gettime(Process::CLOCK_MONOTONIC) - began)).round(1)]
        end
      end

      def compute(kind, model, texts)
        case kind
        when :embedding then model.embed(texts, as: :packed)
        when :reranker then model.score(texts.first, texts)
        when :classifier then model.classify(texts)
        when :ner then model.extract_entities(texts)
        else raise ArgumentError, "bench supports language models and encoders, not the kind #{kind}"
        end
      end

      def repeat(seconds = options[:seconds])
        stop = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
        results = []
        loop do
          results << yield
          return results if Process.clock_gettime(Process::CLOCK_MONOTONIC) >= stop
        end
      end

      def mean(values)
        (values.sum / values.size).round(2)
      end
    end
  end
end
