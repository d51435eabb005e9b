# frozen_string_literal: true

require_relative "comparison"

module GpuBench
  # Models of which the device holds a part of the layers, and the CPU the others.
  class Split
    TINY = %w[decoders/llama decoders/gemma3 decoders/gpt2 decoders/qwen3-moe gguf-decoders/llama
              gguf-decoders/quantized].freeze
    TEXT = "the quick brown fox"
    # Log probabilities of a split model in f32 against one on the device.
    LIMIT = 2e-3
    # Blocks are multiplied with rounded inputs on the CPU.
    BLOCK_LIMIT = 0.1

    def initialize(bench)
      @bench = bench
      @results = bench.results
    end

    def run(name)
      TINY.each { |tiny| compare(tiny) }
      path = @bench.checkpoint(name)
      memory = @bench.tiny ? "3MB" : "1500MB"
      whole = measure(path)
      { "device_map: :auto in #{memory}" => { device_map: :auto, gpu_memory: memory },
        "half of the layers" => { gpu_layers: @bench.tiny ? 1 : 8 } }.each do |title, options|
        rate, layers = measure(path, **options)
        @results.speed("split", title, rate, nil, unit: "tokens/s",
                                                  note: "#{layers}, all on the device: #{whole.first.round(1)}")
      end
    end

    private

    def compare(name)
      path = File.join(Families::ROOT, name)
      ask = lambda do |options|
        @bench.on_device(Candle::LLM, path, dtype: :f32, **options) do |model|
          [model.logprobs(TEXT).filter_map { |entry| entry[:logprob] },
           model.complete(TEXT, max_length: 20, temperature: 0).token_ids]
        end
      end
      whole, split = [{}, { gpu_layers: 1 }].map(&ask)
      limit = name.include?("quantized") ? BLOCK_LIMIT : LIMIT
      @results.parity("split", "#{name} after one layer", Numbers.difference(split.first, whole.first), limit)
      return if limit == BLOCK_LIMIT

      @results.fact("split", "#{name} writes the same tokens", split.last == whole.last)
    end

    # @return [Array(Float, Hash)] tokens per second of one sequence, and where the layers are
    def measure(path, **options)
      @bench.on_device(Candle::LLM, path, dtype: :bf16, kv_cache: "128MB", **options) do |model|
        prompt = @bench.words(24, step: 7919).join(" ")
        short, long = [1, 33].map do |length|
          config = Candle::GenerationConfig.deterministic(max_length: length)
          Numbers.median_ms(3, warm_up: 1) { model.generate(prompt, config: config) }
        end
        [1000.0 * 32 / (long - short), model.device_report[:layers]]
      end
    end
  end
end
