# frozen_string_literal: true

require "tmpdir"
require_relative "candle_transformers"
require_relative "peers"
require_relative "results"
require_relative "runner"
require_relative "suite"
require_relative "table"

module Bench
  # `rake bench`.
  module Main
    module_function

    # @param wanted [Array<String>] cases or groups; none is all
    # @param quick [Boolean]
    # @param threads [Integer]
    # @return [Boolean] whether everything was computed alike
    def run(wanted: [], quick: false, threads: Etc.nprocessors)
      Peers.prepare
      CandleTransformers.prepare
      warn_when_busy
      Dir.mktmpdir("bench-") do |directory|
        cases = Suite.new(directory, quick: quick).select(wanted)
        machine = Machine.facts
        runner = Runner.new(threads: threads)
        started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        outcomes = runner.run(cases)
        seconds = Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
        report(Results.build(outcomes, versions: runner.versions, threads: threads, seconds: seconds, machine: machine,
                                       whole: wanted.empty? && !quick))
      end
    end

    def report(result)
      outcomes = result["cases"]
      puts "", Table.text(outcomes), "", "#{result["machine"]["processor"]}, #{result["threads"]} threads, " \
                                         "#{result["seconds"]} s; every sample: #{Results.write(result)}"
      outcomes.none? { |outcome| Outcome.wrong?(outcome) }
    end

    def warn_when_busy
      load = Machine.load_average
      warn "The machine is busy (load #{load}): ratios will waver." if load && load > Machine::BUSY
    end
  end
end
