# frozen_string_literal: true

require "json"
require "tmpdir"

require_relative "../../bench/harness/worker"

# llama.cpp with a GGUF file, through the worker of the benchmarks.
class LlamaCpp
  THREADS = 2

  class << self
    # @return [String, nil] a Python with llama-cpp-python: `LLAMA_CPP_PYTHON`, or that of the benchmarks
    def python
      candidates = [ENV.fetch("LLAMA_CPP_PYTHON", nil), Bench::Peers.python].compact
      candidates.find { |path| system(path, "-c", "import llama_cpp", out: File::NULL, err: File::NULL) }
    end

    # @param path [String] a GGUF file, or the first of several
    # @yieldparam llama [LlamaCpp]
    # @raise [Bench::Worker::Failure] when llama.cpp cannot load it
    def open(path)
      Dir.mktmpdir do |directory|
        llama = new(path, directory)
        yield llama
      ensure
        llama&.close
      end
    end
  end

  def initialize(path, directory)
    @path = path
    @directory = directory
    script = File.join(Bench::Worker::DIRECTORY, Bench::Worker::SCRIPTS.fetch("llama.cpp"))
    @worker = Bench::Worker.new("llama.cpp", [self.class.python, script], Bench::Worker.settings(THREADS))
    @worker.request("load", key: path, kind: "llm", path: path)
  end

  # @param ids [Array<Integer>] of a text
  # @return [Array<Float>] of every token but the first
  def logprobs(ids)
    run("logprobs", ids: ids).last
  end

  # @param ids [Array<Integer>] of a prompt
  # @param count [Integer] two at least
  # @return [Array<Integer>] the likeliest tokens
  def greedy(ids, count)
    run("decode", ids: ids, tokens: count)
  end

  def close
    @worker.stop
  end

  private

  # The worker remembers inputs by their paths.
  def run(task, data)
    @count = @count.to_i + 1
    input = File.join(@directory, "#{@count}.json")
    File.write(input, JSON.generate(data))
    @worker.request("run", key: @path, task: task, input: input, repeat: 1, result: true).fetch(:result)
  end
end
