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
        runner = Runner.new(threads: threads)
        record = recorder(runner, threads)
        # A run that is broken off leaves what it has.
        outcomes = runner.run(cases) { |so_far| Results.write(record.call(so_far, false)) }
        report(record.call(outcomes, wanted.empty? && !quick))
      end
    end

    # @return [Proc] outcomes, and whether they are all, to what the run's file has
    def recorder(runner, threads)
      machine = Machine.facts
      date = Time.now
      lambda do |outcomes, whole|
        Results.build(outcomes, versions: runner.versions, threads: threads, seconds: Time.now - date, whole: whole,
                                machine: machine, date: date)
      end
    end

    def report(result)
      outcomes = result["cases"]
      machine = result["machine"]
      puts "", Table.text(outcomes), "", "#{machine["processor"]}, level #{machine["level"]}, " \
                                         "#{result["threads"]} threads, #{result["seconds"]} s; " \
                                         "every sample: #{Results.write(result)}"
      outcomes.none? { |outcome| Outcome.wrong?(outcome) }
    end

    def warn_when_busy
      load = Machine.load_average
      warn "The machine is busy (load #{load}): ratios will waver." if load && load > Machine::BUSY
    end
  end
end
