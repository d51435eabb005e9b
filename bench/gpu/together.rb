# frozen_string_literal: true

require_relative "numbers"

module GpuBench
  # Many sequences on one language model, beside PyTorch's batches of the same size.
  class Together
    # How many times as fast as one sequence so many must be, and how many tokens per second so many must reach.
    TIMES = { 32 => 15.0 }.freeze
    RATES = { 128 => 12_000, 256 => 18_000, 512 => 24_000, 1024 => 28_000 }.freeze
    # Batches that PyTorch computes beside them at most.
    MOST_OF_PEER = 256

    def initialize(bench)
      @bench = bench
      @results = bench.results
      @counts = bench.tiny ? [1, 4] : [1, 8, 32, 64, 128, 256, 512, 1024]
    end

    # Random weights of a well-known shape in bf16.
    def run(name)
      path = @bench.checkpoint(name)
      peers = @counts.grep(..MOST_OF_PEER).to_h { |count| [count, peer_rate(path, count)] }
      @bench.peer.stop
      @bench.on_device(Candle::LLM, path, dtype: :bf16, kv_cache: "48GB") do |model|
        rates = @counts.to_h { |count| [count, rate(model, texts(count))] }
        rates.each { |count, rate| report(count, rate, peers[count], rates[1]) }
        @counts.drop(1).each { |count| by_threads(model, count, rates[count]) }
        beside_a_long_prompt(model, @counts[1], rates[@counts[1]])
        arriving(model)
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
      least = RATES[count]
      @results.share("together", "#{count} sequences, of #{least} tokens/s", rate / least, 1.0) if least
    end

    # The same from a thread for each sequence.
    def by_threads(model, count, rate)
      short, long = [1, new_tokens].map do |tokens|
        Numbers.median_ms(1, warm_up: 1) do
          model.clear_cache
          texts(count).map { |text| Thread.new { model.generate(text, config: config(tokens)) } }.each(&:join)
        end
      end
      threads = 1000 * count * (new_tokens - 1) / (long - short)
      @results.speed("together", "#{count} threads", threads, nil, unit: "tokens/s",
                                                                   note: "#{(threads / rate).round(2)} of an Array")
    end

    # Streams that begin one after the other, each with a prompt that nobody else has.
    def arriving(model)
      count, length, tokens, pause = @bench.tiny ? [4, 50, 5, 0.01] : [256, 1000, 200, 0.02]
      model.clear_cache
      start = now
      threads = Array.new(count) do |number|
        prompt = @bench.words(length, step: 7919, start: 1009 * number).join(" ")
        sleep pause
        Thread.new { times_of(model, prompt, tokens) }
      end
      gaps = threads.flat_map { |thread| thread.value.each_cons(2).map { |before, after| after - before } }.sort
      report_arrivals("#{count} arriving prompts of #{length}", count * tokens / (now - start), gaps)
    end

    def report_arrivals(name, rate, gaps)
      median = gaps[gaps.size / 2]
      late = gaps[(gaps.size * 0.99).floor]
      note = "median #{(1000 * median).round(1)} ms, p99 #{(1000 * late).round(1)} ms between tokens"
      @results.speed("together", name, rate, nil, unit: "tokens/s", note: note)
      @results.share("together", "p99 within three medians", 3 * median / late, 1.0)
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    def times_of(model, prompt, tokens)
      times = []
      model.generate_stream(prompt, config: config(tokens)) { times << now }
      times
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
