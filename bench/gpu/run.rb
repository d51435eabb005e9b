# frozen_string_literal: true

require "candle"
require "fileutils"
require "optparse"
require "time"
require "tmpdir"
require_relative "behaviour"
require_relative "decoders"
require_relative "encoders"
require_relative "families"
require_relative "fp8"
require_relative "layers"
require_relative "peer"
require_relative "pictures"
require_relative "results"
require_relative "speech"
require_relative "split"
require_relative "together"

# Parity and speed on a GPU, in one run beside PyTorch; see README.md.
module GpuBench
  # One run: its settings, and what the sections share.
  class Run
    SECTIONS = {
      "families" => ->(bench, _) { Families.new(bench.device, bench.results).run },
      "seeded" => ->(bench, _) { Families.new(bench.device, bench.results).run_seeded },
      "pictures" => ->(bench, _) { Pictures.new(bench.device, bench.results).run },
      "speech" => ->(bench, _) { Speech.new(bench).run },
      "whisper-v3" => ->(bench, name) { Speech.new(bench).large(name) },
      "split" => ->(bench, _) { Split.new(bench).run("llama-1b") },
      "errors" => ->(bench, _) { Behaviour.new(bench).run },
      "recorded" => ->(bench, _) { Behaviour.new(bench).recorded },
      "minilm" => ->(bench, _) { Encoders.new(bench).minilm },
      "minilm-l6" => ->(bench, name) { Encoders.new(bench).strings(name) },
      "bert-base" => ->(bench, name) { Encoders.new(bench).shape(name) },
      "bert-large" => ->(bench, name) { Encoders.new(bench).shape(name) },
      "rerank" => ->(bench, _) { Encoders.new(bench).rerank },
      "smollm" => ->(bench, _) { Decoders.new(bench).smollm },
      "llama-1b" => ->(bench, name) { Decoders.new(bench).shape(name, cpu: true, targets: false) },
      "llama-8b" => ->(bench, name) { Decoders.new(bench).shape(name, cpu: bench.tiny, targets: !bench.tiny) },
      "together" => ->(bench, _) { Together.new(bench).run("llama-8b") },
      "fp8" => ->(bench, _) { Fp8.new(bench).run("llama-8b", ["fp8"]) },
      "fp8-squares" => ->(bench, _) { Fp8.new(bench).run("llama-8b", ["fp8-squares"]) },
      "mixture-15b" => ->(bench, name) { Layers.new(bench).mixture(name) },
      "hybrid-9b" => ->(bench, name) { Layers.new(bench).hybrid(name, "llama-8b") },
      "quantized" => ->(bench, _) { Decoders.new(bench).quantized("llama-8b") }
    }.freeze

    attr_reader :device, :models, :peer, :results, :tiny

    def initialize(arguments)
      @options = { device: "cuda", work: File.join(Dir.tmpdir, "red-candle-gpu"), models: ".", output: ".",
                   python: "python3" }
      @sections = parser.parse(arguments)
      @sections = SECTIONS.keys if @sections.empty?
      unknown = @sections - SECTIONS.keys
      abort "unknown section #{unknown.join(", ")}; known: #{SECTIONS.keys.join(" ")}" if unknown.any?
      @tiny = @options[:tiny]
      @models = @options[:models]
      @device = open_device
      @peer = Peer.new(@options[:python], @device.kind.to_s)
      @results = Results.new(about)
    end

    # @return [Boolean] whether every target was reached
    def run
      @sections.each do |name|
        start = now
        run_section(name)
        warn "-- #{name} took #{(now - start).round(1)} s"
        save
      end
      @results.print_all
      @results.passed?
    ensure
      @peer.stop
    end

    # @param quantized [Boolean] whether as a GGUF file of Q4_K and Q6_K blocks
    # @return [String] the directory of a seeded random checkpoint, made on the spot
    def checkpoint(name, quantized: false)
      name = "tiny-#{name.sub(/-(base|large|1b|8b|9b|15b|v3|l6)/, "")}" if @tiny
      path = File.join(@options[:work], "#{name}#{"-q4_k_m" if quantized}")
      script = File.join(__dir__, quantized ? "make_quantized.py" : "make_checkpoints.py")
      start = now
      system(@options[:python], script, name, path) || abort("#{script} failed")
      warn "-- #{name} is there after #{(now - start).round(1)} s"
      path
    end

    # @return [Integer] of the random checkpoints
    def vocabulary
      @tiny ? 1000 : 30_000
    end

    # @return [Array<String>] words of the random checkpoints, a token each
    def words(count, step:, start: 0)
      Array.new(count) { |index| "w#{1 + (((start + index) * step) % (vocabulary - 1))}" }
    end

    # @return [Symbol] f16 where that is fast
    def half
      @device.kind == :cpu ? :f32 : :f16
    end

    def on_cpu(klass, path, dtype: :f32, **options, &block)
      with(klass, path, device: "cpu", dtype: dtype, **options, &block)
    end

    def on_device(klass, path, dtype: nil, **options, &block)
      start = now
      with(klass, path, device: @device, dtype: dtype, **options) do |model|
        warn "-- #{File.basename(path)} loaded on #{@device} in #{(now - start).round(1)} s"
        block.call(model)
      end
    end

    private

    def run_section(name)
      SECTIONS.fetch(name).call(self, name)
    rescue Candle::Error => e
      @results.fact(name, "ran to its end", false, note: "#{e.class}: #{e.message}")
    end

    def with(klass, path, **options)
      model = klass.from_pretrained(path, **options)
      yield model
    ensure
      model&.close
    end

    def parser
      OptionParser.new do |parser|
        parser.banner = "usage: ruby -Ilib bench/gpu/run.rb [options] [#{SECTIONS.keys.join("|")} ...]"
        parser.on("--device NAME", "cuda, cuda:1, metal or cpu (cuda)") { |value| @options[:device] = value }
        parser.on("--tiny", "small shapes, to try the script itself") { @options[:tiny] = true }
        parser.on("--models DIR", "with minilm-f16/ and smollm2.gguf (.)") { |value| @options[:models] = value }
        parser.on("--work DIR", "for checkpoints made on the spot") { |value| @options[:work] = value }
        parser.on("--output DIR", "for gpu.json (.)") { |value| @options[:output] = value }
        parser.on("--python COMMAND", "with torch (python3)") { |value| @options[:python] = value }
      end
    end

    def open_device
      Candle::Device.parse(@options[:device]).tap(&:synchronize)
    rescue Candle::DeviceError => e
      abort "bench/gpu: #{e.message}"
    end

    def about
      { date: Time.now.utc.iso8601, "red-candle": Candle::VERSION, build: Candle::BuildInfo.build, on: @device.to_s }
        .merge(@peer.ask("about"))
    end

    def save
      FileUtils.mkdir_p(@options[:output])
      @results.write(File.join(@options[:output], "gpu.json"))
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end
  end
end

exit(GpuBench::Run.new(ARGV).run) if $PROGRAM_NAME == __FILE__
