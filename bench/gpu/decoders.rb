# frozen_string_literal: true

require_relative "numbers"

module GpuBench
  # Language models: parity first, then one sequence's speed beside PyTorch.
  class Decoders
    # What an H200 reads per second.
    BANDWIDTH = 4.3e12

    def initialize(bench)
      @bench = bench
      @results = bench.results
    end

    # Quantized weights of a real model. PyTorch has no peer for these blocks.
    def smollm
      path = File.join(@bench.models, "smollm2.gguf")
      return @results.fact("smollm", "real weights", false, note: "#{path} is missing") unless File.file?(path)

      text = "The capital of France is Paris, and the capital of Germany is Berlin."
      expected = @bench.on_cpu(Candle::LLM, path, dtype: nil) { |model| logprobs(model, text) }
      @bench.on_device(Candle::LLM, path) do |model|
        difference = Numbers.mean_difference(logprobs(model, text), expected)
        @results.parity("smollm", "log probabilities against the CPU", difference, 0.1)
        question = [{ role: "user", content: "What is the capital of France? Answer in one sentence." }]
        answer = model.chat(question, config: Candle::GenerationConfig.deterministic(max_length: 24))
        @results.fact("smollm", "answers a question", answer.include?("Paris"), note: answer.inspect)
        rate, = rate(model, text)
        @results.speed("smollm", "tokens per second", rate, nil, unit: "tokens/s")
      end
    end

    # Random weights of a well-known shape in bf16.
    def shape(name, cpu:, targets:)
      path = @bench.checkpoint(name)
      words = @bench.words(24, step: 7919)
      ids = words.map { |word| Integer(word.delete_prefix("w")) }
      text = words.join(" ")
      expected = cpu ? @bench.on_cpu(Candle::LLM, path) { |model| logprobs(model, text) } : nil
      peer = @bench.peer.ask("decode", path: path, dtype: "bf16", ids: ids, new_tokens: new_tokens, repetitions: 3)
      @bench.peer.stop
      @bench.on_device(Candle::LLM, path, dtype: :bf16) do |model|
        compare(name, logprobs(model, text), expected, peer)
        rate, prompt = rate(model, text)
        @results.speed(name, "prompt of 24 and 1 token", prompt, peer[:prompt_milliseconds])
        @results.speed(name, "decode, one sequence", rate, peer[:tokens_per_second], unit: "tokens/s",
                                                                                     times_faster: targets ? 1.0 : nil)
        bandwidth(name, model, path, rate, targets)
      end
    end

    # Blocks of Q4_K and Q6_K, which stay what they are on the device.
    def quantized(name)
      path = @bench.checkpoint(name, quantized: true)
      text = @bench.words(24, step: 7919).join(" ")
      expected = @bench.on_cpu(Candle::LLM, path, dtype: nil, tokenizer: path) { |model| logprobs(model, text) }
      @bench.on_device(Candle::LLM, path, dtype: :bf16, tokenizer: path) do |model|
        difference = Numbers.mean_difference(logprobs(model, text), expected)
        @results.parity("quantized", "log probabilities against the CPU", difference, 0.1)
        rate, prompt = rate(model, text)
        @results.speed("quantized", "prompt of 24 and 1 token", prompt, nil)
        @results.speed("quantized", "decode, one sequence", rate, nil, unit: "tokens/s")
        blocks(model.model_info, File.size(File.join(path, "model.gguf")), rate)
        many(model)
      end
    end

    private

    # Sequences at once, and the share of the memory's rate that so many must reach.
    MANY = { 8 => 0.0, 32 => 0.6, 64 => 0.0 }.freeze
    private_constant :MANY

    # A step of many sequences reads the blocks once, too.
    def many(model)
      read = read_per_step(model.model_info)
      MANY.each do |count, wanted|
        texts = Array.new(count) { |number| @bench.words(24, step: 7919, start: 31 * number).join(" ") }
        short, long = [1, new_tokens].map do |length|
          Numbers.median_ms(2, warm_up: 1) do
            model.clear_cache
            model.generate(texts, config: Candle::GenerationConfig.deterministic(max_length: length))
          end
        end
        rate = 1000 * count * (new_tokens - 1) / (long - short)
        @results.speed("quantized", "#{count} sequences", rate, nil, unit: "tokens/s")
        @results.share("quantized", "#{count} sequences, of the memory's rate", rate / count * read / BANDWIDTH,
                       @bench.tiny ? 0.0 : wanted)
      end
    end

    # All but the token table.
    def read_per_step(info)
      info[:weight_bytes] - (info[:vocabulary] * info[:hidden_size] / 256 * 144)
    end

    # What the blocks take, and how fast those that a token needs are read: all but the token table.
    def blocks(info, file, rate)
      bytes = info[:weight_bytes]
      @results.fact("quantized", "takes what the file takes", bytes < 1.05 * file, note: "#{bytes} of #{file} bytes")
      read = read_per_step(info)
      @results.share("quantized", "memory bandwidth", rate * read / BANDWIDTH, @bench.tiny ? 0.0 : 0.55,
                     note: format("%.2f GB per token at 4.3 TB/s", read / 1e9))
    end

    def new_tokens
      @bench.tiny ? 9 : 129
    end

    def logprobs(model, text)
      model.logprobs(text).filter_map { |entry| entry[:logprob] }
    end

    # Two that round at each step are apart by what both lost: each is held against the same weights in f32.
    def compare(name, found, expected, peer)
      if expected
        difference = Numbers.mean_difference(found, expected)
        @results.parity(name, "log probabilities against the CPU in f32", difference, 0.05)
      end
      exact = peer && peer[:exact_logprobs]
      return unless exact

      theirs = Numbers.mean_difference(peer[:logprobs], exact)
      @results.parity(name, "log probabilities against PyTorch in f32", Numbers.mean_difference(found, exact),
                      [1.25 * theirs, 0.01].max.round(4), note: "PyTorch in bf16 is #{theirs.round(4)} off")
    end

    # The time of many tokens less that of one, so that the prompt does not count.
    #
    # @return [Array(Float, Float)] tokens per second, and milliseconds of the prompt with its first token
    def rate(model, text)
      generate = lambda do |count|
        model.clear_cache
        model.complete(text, config: Candle::GenerationConfig.deterministic(max_length: count)).token_ids.size
      end
      made = generate.call(new_tokens)
      short = Numbers.median_ms(5, warm_up: 1) { generate.call(1) }
      long = Numbers.median_ms(3, warm_up: 1) { generate.call(new_tokens) }
      [1000 * (made - 1) / (long - short), short]
    end

    # Every weight but the token table is read once per token; a tied table is read as the head.
    def bandwidth(name, model, path, rate, targets)
      info = model.model_info
      tied = JSON.parse(File.read(File.join(path, "config.json"))).fetch("tie_word_embeddings")
      read = info[:parameters] - (tied ? 0 : info[:vocabulary] * info[:hidden_size])
      share = rate * read * 2 / BANDWIDTH
      @results.share(name, "memory bandwidth", share, targets ? 0.6 : 0.0,
                     note: format("%.2f GB per token at 4.3 TB/s", read * 2 / 1e9))
    end
  end
end
