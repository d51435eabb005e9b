# frozen_string_literal: true

require "tmpdir"
require_relative "case"
require_relative "worker"

module Bench
  # Where our time goes in a case, by `perf`: what a missed target is explained with.
  class Profile
    SECONDS = 5
    LINES = 25

    # @param one [Case]
    # @param threads [Integer]
    def initialize(one, threads:)
      @one = one
      @ours = one.participants.first
      @threads = threads
    end

    # @return [String] the functions that take most, with their shares
    def text
      worker = Worker.start(@ours.worker, threads: @threads, environment: @ours.environment)
      load_model(worker)
      once = run(worker, 1)[:seconds]
      Dir.mktmpdir("profile-") do |directory|
        recording = File.join(directory, "perf.data")
        record(worker.pid, recording) { run(worker, (SECONDS / once).ceil.clamp(1, 10_000)) }
        report(recording)
      end
    ensure
      worker&.stop
    end

    private

    def load_model(worker)
      model = @ours.model
      worker.request("load", key: "model", kind: model[:kind], path: model[:path].call, dtype: model[:dtype])
    end

    def run(worker, repeat)
      worker.request("run", key: "model", task: @ours.task, input: @one.input, repeat: repeat)
    end

    def record(pid, path)
      recorder = Process.spawn("perf", "record", "--quiet", "--freq", "499", "--pid", pid.to_s, "--output", path,
                               out: File::NULL, err: File::NULL)
      yield
    ensure
      Process.kill("INT", recorder)
      Process.wait(recorder)
    end

    def report(path)
      command = ["perf", "report", "--stdio", "--no-children", "--sort", "symbol", "--input", path]
      lines = IO.popen(command, err: File::NULL, &:readlines)
      lines.reject { |line| line.start_with?("#") || line.strip.empty? }.first(LINES).join
    end
  end
end
