# frozen_string_literal: true

module GpuBench
  # What a device does when something goes wrong: memory, indexes, forks, closing.
  class Behaviour
    def initialize(bench)
      @bench = bench
      @results = bench.results
    end

    def run
      @results.fact("errors", "the device is available", Candle::Device.available_devices.include?(@bench.device.to_s),
                    note: Candle::Device.available_devices.join(" "))
      out_of_memory
      wrong_index
      closing
      forking
      company
      drafting
      budget
    end

    # Steps that are replayed and steps that are launched kernel by kernel say the same, to the last bit.
    def recorded
      return unless @bench.device.kind == :cuda

      Dir.mktmpdir do |folder|
        seeded = SEEDED.map { |name| SeededModels.write(name, File.join(folder, name).tap { |path| Dir.mkdir(path) }) }
        waiting = [*REPLAYED.map { |name| File.join(Families::ROOT, name) }, *seeded]
        said = {}
        workers = Array.new(AT_ONCE) do
          Thread.new do
            while (path = waiting.shift)
              said[path] = replayed(path)
            end
          end
        end
        workers.each(&:join)
        said.sort.each { |path, texts| compare_replayed(path, texts) }
      end
    end

    private

    def out_of_memory
      error = failure { Candle::Tensor.ones([1 << 20, 1 << 20], device: @bench.device) }
      sum = Candle::Tensor.ones([4], device: @bench.device).sum.item.to_i
      @results.fact("errors", "4 TiB is OutOfMemoryError, and work goes on",
                    error.is_a?(Candle::OutOfMemoryError) && sum == 4, note: error&.message)
    end

    def wrong_index
      error = failure { Candle::Tensor.ones([1], device: "#{@bench.device.kind}:63") }
      @results.fact("errors", "a device that is not there is DeviceError", error.is_a?(Candle::DeviceError),
                    note: error&.message)
    end

    def closing
      path = @bench.checkpoint("bert-base")
      model = Candle::EmbeddingModel.from_pretrained(path, device: @bench.device, dtype: @bench.half)
      model.embed_ids([[5, 6, 7]])
      before = used_memory
      model.close
      @bench.device.synchronize
      after = used_memory
      error = failure { model.embed_ids([[5]]) }
      freed = before.nil? || before - after >= 0
      @results.fact("errors", "a closed model raises and frees", error&.message.to_s.include?("closed") && freed,
                    note: before && "#{before} to #{after} MiB, which the driver may keep for the process")
    end

    def forking
      return unless @bench.device.kind == :cuda

      model = Candle::EmbeddingModel.from_pretrained(File.join(Families::ROOT, "bert"), device: @bench.device)
      reader, writer = IO.pipe
      pid = fork do
        writer.write(failure { model.embed("a") }.class.name)
        writer.close
        exit!(0)
      end
      writer.close
      found = reader.read
      Process.wait(pid)
      @results.fact("errors", "a forked child gets DeviceError", found == "Candle::DeviceError", note: found)
      @results.fact("errors", "the parent goes on", model.embed("a").all?(&:finite?))
    end

    REPLAYED = %w[decoders/llama decoders/qwen3 decoders/gemma3 decoders/gpt2 gguf-decoders/llama].freeze
    # Layers that keep states, and experts.
    SEEDED = %w[bamba falcon_h1 granitemoehybrid jamba lfm2 mamba mamba2 minimax nemotron_h-dense olmo_hybrid
                qwen3_5_text qwen3_next-wide granitemoe_swa glm4_moe-wide hunyuan_v1_moe minimax_m2 olmoe].freeze
    # Models at a time, each in a process: they mostly wait for NVRTC.
    AT_ONCE = 4
    private_constant :REPLAYED, :SEEDED, :AT_ONCE

    def replayed(path)
      [nil, "0"].map { |switch| IO.popen([{ "CANDLE_CUDA_GRAPHS" => switch }, *child(path)], &:read) }
    end

    def compare_replayed(path, texts)
      @results.fact("recorded", "recorded steps of #{File.basename(path)} give the same bits",
                    texts.uniq.size == 1 && texts.first.size > 500, note: "#{texts.first.size} characters")
    end

    # Prints what models say, alone and together, with the probabilities of it.
    def child(path)
      script = <<~RUBY
        require "candle"
        ARGV.each do |path|
          llm = Candle::LLM.from_pretrained(path, device: "cuda", dtype: :bf16)
          ask = ->(text) { llm.complete(text, max_length: 90, temperature: 0, logprobs: 1) }
          answers = [ask.("the quick fox"), *%w[a the one two].map { |text| Thread.new { ask.(text) } }.map(&:value)]
          puts [answers.first.text, answers.first.logprobs].inspect
          plain = ->(text, length) { llm.complete(text, max_length: length, temperature: 0).token_ids }
          puts [5, 90, 40].map { |length| plain.("the quick fox", length) }.inspect
          %w[a the one two].map { |text| Thread.new { plain.(text, 60) } }.each(&:join)
          puts plain.("the quick fox", 90).inspect
          warn path, answers.map { |answer| answer.text.size }.inspect
        end
      RUBY
      [File.readlink("/proc/self/exe"), "--disable=gems", *$LOAD_PATH.map { |folder| "-I#{folder}" }, "-e", script,
       path]
    end

    # How far log probabilities of a text beside seven others may be from those of the text alone: products add up in
    # another order there. The CPU's are the same.
    COMPANY = 1e-4
    TEXTS = %w[a the one two dog fox is in].freeze
    private_constant :COMPANY, :TEXTS

    def company
      REPLAYED.each do |name|
        @bench.on_device(Candle::LLM, File.join(Families::ROOT, name), dtype: :f32) do |llm|
          ask = ->(text) { llm.complete(text, max_length: 40, temperature: 0, logprobs: 5) }
          alone = TEXTS.map(&ask)
          llm.clear_cache
          together = TEXTS.map { |text| Thread.new { ask.call(text) } }.map(&:value)
          off = alone.zip(together).flat_map { |one, other| differences(one.logprobs, other.logprobs) }
          limit = @bench.device.kind == :cpu ? 0.0 : COMPANY
          @results.parity("errors", "#{name} beside seven others", largest(off), limit)
        end
      end
    end

    # A model that answers for itself and drafts for another at the same time, each with recorded steps of its own.
    def drafting
      path = File.join(Families::ROOT, "decoders/llama")
      @bench.on_device(Candle::LLM, path, dtype: :f32) do |draft|
        expected = TEXTS.flat_map { |text| [plain(draft, text)] * 2 }
        @bench.on_device(Candle::LLM, path, dtype: :f32, draft: draft) do |target|
          pairs = TEXTS.product([draft, target])
          found = pairs.map { |text, llm| Thread.new { plain(llm, text) } }.map(&:value)
          in_turns = pairs.map { |text, llm| plain(llm, text) }
          @results.fact("errors", "a model that also drafts says the same", [found, in_turns].all?(expected),
                        note: target.stats.slice(:drafted, :accepted).inspect)
        end
      end
    end

    def plain(llm, text)
      llm.complete(text, max_length: 60, temperature: 0).token_ids
    end

    # The default KV cache is a share of the device's free memory: an eighth of it taken, seven eighths of it given.
    def budget
      return unless @bench.device.kind == :cuda

      limit = lambda do
        @bench.on_device(Candle::LLM, File.join(Families::ROOT, "decoders/llama"), dtype: :f16) do |llm|
          llm.stats.values_at(:pages_used, :pages_idle, :pages_free).sum
        end
      end
      before = limit.call
      ballast = Array.new(free_memory / 8192) { Candle::Tensor.ones([1024, 1 << 18], device: @bench.device) }
      share = limit.call.fdiv(before)
      @results.fact("errors", "the KV cache is a share of the device's memory", share.between?(0.8, 0.92),
                    note: "#{share.round(2)} of #{before} pages beside #{ballast.size} GiB")
    end

    # Of the log probabilities of the likeliest tokens, up to and with the first where another was chosen.
    def differences(one, other)
      pairs = one.zip(other).select(&:all?)
      common = pairs.take_while { |pair| pair.map { |choice| choice[:id] }.uniq.one? }.size
      pairs.first(common + 1).flat_map do |mine, yours|
        known = yours[:top].to_h { |token| [token[:id], token[:logprob]] }
        mine[:top].filter_map { |token| known[token[:id]]&.then { |logprob| (token[:logprob] - logprob).abs } }
      end
    end

    def largest(numbers)
      numbers.empty? || numbers.any?(&:nan?) ? Float::NAN : numbers.max
    end

    def failure
      yield
      nil
    rescue Candle::Error => e
      e
    end

    # @return [Integer, nil] MiB in use on the GPU
    def used_memory
      return unless @bench.device.kind == :cuda

      memory("used")
    rescue SystemCallError
      nil
    end

    # @return [Integer] MiB
    def free_memory
      memory("free")
    end

    def memory(name)
      IO.popen(["nvidia-smi", "--query-gpu=memory.#{name}", "--format=csv,noheader,nounits"], &:read)[/\d+/]&.to_i
    end
  end
end
