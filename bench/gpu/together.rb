# frozen_string_literal: true

require_relative "numbers"

module GpuBench
  # Many sequences on one language model, beside PyTorch's batches of the same size.
  class Together
    # How many times as fast as one sequence so many must be.
    TIMES = { 32 => 15.0 }.freeze

    def initialize(bench)
      @bench = bench
      @results = bench.results
      @counts = bench.tiny ? [1, 4] : [1, 8, 32, 64]
    end

    # Random weights of a well-known shape in bf16.
    def run(name)
      path = @bench.checkpoint(name)
      peers = @counts.to_h { |count| [count, peer_rate(path, count)] }
      @bench.peer.stop
      @bench.on_device(Candle::LLM, path, dtype: :bf16, kv_cache: "16GB") do |model|
        rates = @counts.to_h { |count| [count, rate(model, texts(count))] }
        rates.each { |count, rate| report(count, rate, peers[count], rates[1]) }
        beside_a_long_prompt(model, @counts[1], rates[@counts[1]])
      end
    end

    private

    def new_tokens
      @bench.tiny ? 9 : 129
    end

    def config(count)
      Candle::GenerationConfig.deterministic(max_length: count)
    end

    def texts(count)
      Array.new(count) { |number| @bench.words(24, step: 7919, start: 31 * number).join(" ") }
    end

    def peer_rate(path, count)
      ids = texts(count).map { |text| text.split.map { |word| Integer(word.delete_prefix("w")) } }
      @bench.peer.ask("decode_together", path: path, dtype: "bf16", ids: ids, new_tokens: new_tokens,
                                         repetitions: 2)[:tokens_per_second]
    end

    # The time of many tokens less that of one, so that the prompts do not count.
    def rate(model, texts)
      short, long = [1, new_tokens].map do |count|
        Numbers.median_ms(2, warm_up: 1) do
          model.clear_cache
          model.generate(texts, config: config(count))
        end
      end
      1000 * texts.size * (new_tokens - 1) / (long - short)
    end

    def report(count, rate, peer, one)
      @results.speed("together", "#{count} sequences", rate, peer, unit: "tokens/s",
                                                                   note: "#{(rate / one).round(1)} x one")
      times = TIMES[count]
      @results.share("together", "#{count} sequences, of #{times} x one", rate / one / times, 1.0) if times
    end

    def beside_a_long_prompt(model, count, alone)
      prompt = @bench.words(@bench.tiny ? 100 : 4000, step: 104_729).join(" ")
      model.clear_cache
      reader = Thread.new { model.generate(prompt, config: config(1)) }
      took = Numbers.median_ms(1, warm_up: 0) { model.generate(texts(count), config: config(new_tokens)) }
      reader.join
      rate = 1000 * count * new_tokens / took
      @results.speed("together", "#{count} sequences beside a long prompt", rate, nil,
                     unit: "tokens/s", note: "#{(rate / alone).round(2)} of without")
    end
  end
end
