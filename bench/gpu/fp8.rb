# frozen_string_literal: true

require "json"
require_relative "numbers"

module GpuBench
  # A model in FP8 whose checkpoint has rows in FP8, too, beside the same weights in bf16.
  class Fp8
    # How many times as fast as bf16 a prompt and so many sequences must be.
    PROMPT = 1.5
    TIMES = { 256 => 1.4 }.freeze
    COUNTS = [1, 32, 64, 128, 256].freeze
    # Rounding rows may move log probabilities by so many times what rounding the weights moves them.
    ROUNDED = 1.5

    def initialize(bench)
      @bench = bench
      @results = bench.results
      @counts = bench.tiny ? [1, 20] : COUNTS
    end

    # @param kinds [Array<String>] what checkpoints are called behind the name: "fp8" has a scale per output,
    #   "fp8-squares" one per 128 x 128 weights
    def run(name, kinds)
      plain = measured(name)
      kinds.each { |kind| report("#{name}-#{kind}", measured("#{name}-#{kind}"), plain) }
    end

    private

    def measured(name)
      path = @bench.checkpoint(name)
      @bench.on_device(Candle::LLM, path, dtype: :bf16, kv_cache: @bench.tiny ? "64MB" : "24GB") do |model|
        @results.fact("fp8", "#{name} computes", true, note: model.device_report[:kernels][:linear])
        { logprobs: model.logprobs(text(64)).filter_map { |entry| entry[:logprob] },
          prompts: lengths.to_h { |length| [length, prompt(model, length)] },
          rates: @counts.to_h { |count| [count, rate(model, count)] } }
      end
    end

    # The log probabilities of the same weights where rows are not rounded, which a process decides once.
    def exactly(name)
      script = <<~RUBY
        require "candle"
        require "json"
        model = Candle::LLM.from_pretrained(ARGV[0], device: ARGV[1], dtype: :bf16)
        puts JSON.generate(model.logprobs(ARGV[2]).filter_map { |entry| entry[:logprob] })
      RUBY
      command = [File.readlink("/proc/self/exe"), "--disable=gems", *$LOAD_PATH.map { |folder| "-I#{folder}" }]
      said = IO.popen([{ "CANDLE_FP8" => "exact" }, *command, "-e", script, @bench.checkpoint(name),
                       @bench.device.to_s, text(64)], &:read)
      JSON.parse(said.lines.last)
    end

    def report(name, found, plain)
      exact, rounded = [exactly(name), found[:logprobs]].map { |each| Numbers.mean_difference(each, plain[:logprobs]) }
      @results.parity("fp8", "#{name}: log probabilities against bf16", rounded, (ROUNDED * exact).round(4),
                      note: "with rows of bf16 #{exact.round(4)}")
      found[:prompts].each do |length, time|
        compare("#{name}: prompt of #{length}", time, plain[:prompts][length], "ms", length == 2048 ? PROMPT : nil)
      end
      found[:rates].each do |count, rate|
        compare("#{name}: #{count} sequences", rate, plain[:rates][count], "tokens/s", TIMES[count])
      end
    end

    # Beside bf16, not PyTorch.
    def compare(name, ours, other, unit, wanted)
      wanted = nil if @bench.tiny
      @results.speed("fp8", name, ours, other, unit: unit, times_faster: wanted, note: "bf16 beside")
    end

    def lengths
      @bench.tiny ? [100] : [128, 512, 2048]
    end

    def text(length, start: 0)
      @bench.words(length, step: 104_729, start: start).join(" ")
    end

    def prompt(model, length)
      Numbers.median_ms(5, warm_up: 2) do
        model.clear_cache
        model.generate(text(length), config: config(1))
      end
    end

    # The time of many tokens less that of one, so that the prompts do not count.
    def rate(model, count)
      texts = Array.new(count) { |number| text(24, start: 31 * number) }
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
