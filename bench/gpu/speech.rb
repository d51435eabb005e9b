# frozen_string_literal: true

require_relative "comparison"

module GpuBench
  # Speech: every tiny model on the CPU in f32 and on the device in each dtype, and how long a large Whisper takes.
  class Speech
    include Comparison

    FIXTURES = TinyFolder.fixtures
    SOUNDS = %w[tones.wav long.flac].map { |name| File.join(FIXTURES, "audio", name) }.freeze
    LIMITS = { f32: 1e-3, f16: 0.05, bf16: 0.2 }.freeze
    # Of texts, which are equal or not: random weights leave choices to roundings in 16 bits.
    EXACT = { f32: 0.01 }.freeze
    # Files of whisper.cpp and others, and a detector of voices.
    NO_CHECKPOINTS = %w[originals silero silero-sharp].freeze
    # Of noise, as long as a window, and the tokens that the large model writes of each.
    SECONDS = 30
    TOKENS = 112
    COUNTS = [1, 20].freeze

    def initialize(bench)
      @bench = bench
      @device = bench.device
      @results = bench.results
    end

    def run
      root = File.join(FIXTURES, "tiny", "speech")
      (Dir.children(root) - NO_CHECKPOINTS).sort.each do |name|
        limits = writes?(name) ? EXACT : LIMITS
        compare("speech", name, limits, File.join(root, name)) { |path, options| heard(name, path, options) }
      end
    end

    # Random weights of large-v3's shape.
    def large(name)
      path = @bench.checkpoint(name)
      seconds, tokens = @bench.tiny ? [2, 8] : [SECONDS, TOKENS]
      peer = @bench.peer.ask("whisper", path: path, dtype: @bench.half, samples: 16_000 * seconds, counts: COUNTS,
                                        new_tokens: tokens)
      @bench.peer.stop
      @bench.on_device(Candle::Transcriber, path, dtype: @bench.half) do |model|
        COUNTS.each { |count| listen(model, [count, seconds, tokens], peer.dig(:milliseconds, :"#{count}")) }
      end
    end

    private

    # How long recordings of noise take from samples to texts.
    def listen(model, (count, seconds, tokens), peer)
      random = Random.new(1)
      noise = Array.new(count) { Array.new(16_000 * seconds) { random.rand(-0.2..0.2) }.pack("e*") }
      took = Numbers.median_ms(3, warm_up: 1) do
        model.transcribe(noise, sample_rate: 16_000, language: "en", max_new_tokens: tokens, temperature: 0)
      end
      real = 1000.0 * seconds * count / took
      @results.speed("speech", "#{count} times #{seconds} s, #{tokens} tokens each", took, peer,
                     times_faster: @bench.tiny ? nil : 1.0, note: "#{real.round} x real time")
    end

    def writes?(name)
      !name.match?(/classifier|embedding|clap|mixed|masked|voices|frames|adapter\z/)
    end

    def heard(name, path, options)
      case name
      when /classifier|mixed/
        with(Candle::AudioClassifier, path, options) { |m| SOUNDS.map { |s| m.classify(s).sort_by { |e| e[:label] } } }
      when /embedding|clap|voices|frames/
        with(Candle::AudioEmbeddingModel, path, options) { |model| model.embed(SOUNDS) }
      when /masked|adapter\z/ then with(Candle::AudioEmbeddingModel, path, options) { |model| model.embed(SOUNDS) }
      else
        with(Candle::Transcriber, path, options) { |model| model.transcribe(SOUNDS.first).token_ids.map(&:to_f) }
      end
    end
  end
end
