# frozen_string_literal: true

require_relative "numbers"

module GpuBench
  # Every tiny checkpoint of the specs on the CPU in f32, and on the device in each dtype.
  class Families
    ROOT = File.expand_path("../../spec/fixtures/tiny", __dir__)
    TEXT = "the quick brown fox jumps over the lazy dog"
    # How far probabilities and components of unit vectors may be off, and log probabilities.
    LIMITS = { f32: 1e-3, f16: 0.02, bf16: 0.1 }.freeze
    LOGPROB_LIMITS = { f32: 2e-3, f16: 0.1, bf16: 0.5 }.freeze
    # The CPU computes on quantized blocks, a GPU on what they expand to.
    BLOCK_LIMITS = { f32: 0.1, f16: 0.2, bf16: 0.5 }.freeze
    GROUPS = { "decoders" => LOGPROB_LIMITS, "gguf-decoders" => BLOCK_LIMITS }.freeze
    NO_MODELS = %w[adapters].freeze

    def initialize(device, results)
      @device = device
      @results = results
    end

    def run
      encoders = Dir.children(ROOT) - GROUPS.keys - NO_MODELS
      encoders.sort.each { |name| compare(name, LIMITS) { |path, options| encoder(path, options) } }
      GROUPS.each do |group, limits|
        Dir.glob("#{group}/*", base: ROOT).sort.each do |name|
          compare(name, limits) { |path, options| decoder(path, options) }
        end
      end
    end

    private

    # The worst of the dtypes, each as a share of its limit, is what the record shows.
    def compare(name, limits)
      path = File.join(ROOT, name)
      expected = yield(path, { device: "cpu", dtype: :f32 })
      shares = limits.to_h do |dtype, limit|
        [dtype, Numbers.difference(yield(path, { device: @device, dtype: dtype }), expected) / limit]
      end
      note = shares.map { |dtype, share| "#{dtype} #{format("%.0e", share * limits[dtype])}" }.join(" ")
      worst = shares.values.any?(&:nan?) ? Float::NAN : shares.values.max
      @results.parity("families", name, worst, 1, note: note)
    rescue Candle::Error => e
      @results.fact("families", name, false, note: "#{e.class}: #{e.message}")
    end

    def encoder(path, options)
      case File.basename(path)
      when /-masked\z/ then fill(path, options)
      when /-sequence\z/ then with(Candle::Classifier, path, options) { |m| m.classify(TEXT).sort_by { |r| r[:label] } }
      when /-token\z/ then with(Candle::NER, path, options) { |m| m.predict_tokens(TEXT) }
      when /reranker\z/ then with(Candle::Reranker, path, options) { |m| m.score("the fox", [TEXT, "a dog"]) }
      else with(Candle::EmbeddingModel, path, options) { |model| model.embed([TEXT, "a dog"]) }
      end
    end

    def fill(path, options)
      with(Candle::MaskedLM, path, options) do |model|
        model.fill("the quick #{model.mask_token} jumps", top_k: 5).map { |row| row[:score] }
      end
    end

    def decoder(path, options)
      with(Candle::LLM, path, options) { |model| model.logprobs(TEXT).filter_map { |entry| entry[:logprob] } }
    end

    def with(klass, path, options)
      model = klass.from_pretrained(path, **options)
      yield model
    ensure
      model&.close
    end
  end
end
