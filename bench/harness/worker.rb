# frozen_string_literal: true

require "io/wait"
require "json"
require "rbconfig"
require "tempfile"
require_relative "candle_transformers"
require_relative "peers"

module Bench
  # A process that loads models and runs tasks on request, ours or a peer's. It
  # works only while a request is open, so that several can be alive in turns.
  class Worker
    # What a worker answered instead of a result.
    class Failure < StandardError; end
    # It ended, or had to be ended; another one must be started.
    class Death < Failure; end

    # Seconds after which a request times out.
    PATIENCE = 600

    DIRECTORY = File.expand_path("../workers", __dir__)
    ROOT = Tasks::Build::ROOT
    SCRIPTS = { "sentence-transformers" => "sentence_transformers_worker.py", "onnxruntime" => "onnxruntime_worker.py",
                "openvino" => "openvino_worker.py", "ctranslate2" => "ctranslate2_worker.py",
                "fastembed" => "fastembed_worker.py", "llama.cpp" => "llama_worker.py",
                "ik_llama.cpp" => "ik_llama_worker.py" }.freeze

    # @param name [String] "red-candle" or a peer
    # @param threads [Integer]
    # @param environment [Hash{String => String}]
    # @return [Worker]
    def self.start(name, threads:, environment: {})
      new(name, command(name), settings(threads).merge(environment))
    end

    # @return [Array<String>]
    def self.command(name)
      return [CandleTransformers.program] if name == CandleTransformers::NAME

      script = SCRIPTS[name]
      return [RbConfig.ruby, "-I#{File.join(ROOT, "lib")}", File.join(DIRECTORY, "ours.rb")] unless script

      [Peers.python, File.join(DIRECTORY, script)]
    end

    # The same number of threads for whatever pools a library brings.
    def self.settings(threads)
      names = %w[BENCH_THREADS OMP_NUM_THREADS MKL_NUM_THREADS RAYON_NUM_THREADS]
      names.to_h { |name| [name, threads.to_s] }
           .merge("HF_HUB_OFFLINE" => "1", "TRANSFORMERS_VERBOSITY" => "error", "TOKENIZERS_PARALLELISM" => "true")
    end

    # @return [String]
    attr_reader :name
    # @return [Integer] of the process
    attr_reader :pid

    def initialize(name, command, environment)
      @name = name
      @log = Tempfile.new(["bench-", ".log"])
      input, @requests = IO.pipe
      @replies, output = IO.pipe
      @pid = Process.spawn(environment, *command, in: input, out: output, err: @log)
      [input, output].each(&:close)
    end

    # @param operation [String]
    # @return [Hash{Symbol => Object}]
    # @raise [Failure] with the worker's words
    def request(operation, patience: PATIENCE, **arguments)
      @requests.puts JSON.generate({ op: operation, **arguments })
      time_out(patience) unless @replies.wait_readable(patience)
      line = @replies.gets || raise(Death, "#{name} died: #{last_words}")
      reply = JSON.parse(line, symbolize_names: true)
      raise Failure, "#{name}: #{reply[:error]}" if reply[:error]

      reply
    rescue Errno::EPIPE
      raise Death, "#{name} died: #{last_words}"
    end

    def stop
      @requests.close
      Process.wait(pid)
    ensure
      @replies.close
      @log.close!
    end

    private

    def time_out(patience)
      Process.kill("KILL", pid)
      raise Death, "#{name} did not answer within #{patience} s"
    end

    def last_words
      File.readlines(@log.path, chomp: true).reject(&:empty?).last(3).join(" / ")
    end
  end
end
