# frozen_string_literal: true

require_relative "numbers"

module GpuBench
  # Layers that are not plain attention and an MLP: mixtures of experts, and states. Their decoding is held against the
  # bytes that a token must read.
  class Layers
    BANDWIDTH = 4.3e12
    COUNTS = [1, 8, 64].freeze
    # The share of the memory's rate that so many sequences must reach.
    WANTED = { 1 => 0.6, 64 => 0.6 }.freeze
    # What a hybrid's share must be of that of a model that only attends.
    BESIDE_ATTENTION = 0.85

    def initialize(bench)
      @bench = bench
      @results = bench.results
    end

    # A token reads the experts that it is routed to; many tokens read nearly all of them.
    def mixture(name)
      run(name) do |config, info, count|
        experts = config["num_hidden_layers"] * config["num_experts"] * 3 * config["hidden_size"] *
                  config["moe_intermediate_size"]
        used = 1 - ((1 - config["num_experts_per_tok"].fdiv(config["num_experts"]))**count)
        others(config, info) - experts + (experts * used)
      end
    end

    # Every weight, whatever layers keep; beside a model that only attends.
    def hybrid(name, beside)
      hybrid, attention = [name, beside].map { |each| run(each) { |config, info, _| others(config, info) } }
      COUNTS.each do |count|
        @results.share(name, "#{count} sequences, of the share of #{beside}", hybrid[count] / attention[count],
                       !@bench.tiny && count == 1 ? BESIDE_ATTENTION : 0.0)
      end
    end

    private

    def others(config, info)
      info[:parameters] - (config["vocab_size"] * config["hidden_size"])
    end

    # @return [Hash{Integer => Float}] the share of the memory's rate of each number of sequences
    def run(name)
      shares = {}
      path = @bench.checkpoint(name)
      config = JSON.parse(File.read(File.join(path, "config.json")))
      @bench.on_device(Candle::LLM, path, dtype: :bf16, kv_cache: @bench.tiny ? "64MB" : "16GB") do |model|
        COUNTS.each do |count|
          rate = rate(model, count)
          read = 2 * yield(config, model.model_info, count)
          @results.speed(name, "#{count} sequences", rate, nil, unit: "tokens/s")
          shares[count] = rate / count * read / BANDWIDTH
          @results.share(name, "#{count} sequences, of the memory's rate", shares[count],
                         @bench.tiny ? 0.0 : WANTED.fetch(count, 0.0), note: format("%.2f GB a step", read / 1e9))
        end
        prompt(name, model)
      end
      shares
    end

    def prompt(name, model)
      text = @bench.words(@bench.tiny ? 64 : 2048, step: 104_729).join(" ")
      took = Numbers.median_ms(3, warm_up: 1) do
        model.clear_cache
        model.generate(text, config: config(1))
      end
      @results.speed(name, "prompt of #{text.split.size} and 1 token", took, nil)
    end

    # The time of many tokens less that of one, so that the prompts do not count.
    def rate(model, count)
      texts = Array.new(count) { |number| @bench.words(24, step: 7919, start: 31 * number).join(" ") }
      tokens = @bench.tiny ? 9 : 65
      short, long = [1, tokens].map do |length|
        Numbers.median_ms(2, warm_up: 1) do
          model.clear_cache
          model.generate(texts, config: config(length))
        end
      end
      1000 * count * (tokens - 1) / (long - short)
    end

    def config(length)
      Candle::GenerationConfig.deterministic(max_length: length)
    end
  end
end
