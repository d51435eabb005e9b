# frozen_string_literal: true

require "tmpdir"
require_relative "runner"
require_relative "suite"
require_relative "table"

module Bench
  # Times two builds of red-candle in one run, case by case: this checkout's and that of another one, in which
  # `rake compile` was run before. No peer is needed but for the GGUF types that llama.cpp writes.
  module Against
    OTHER = "the other build"

    module_function

    # @param cases [Array<Case, FreshCase>]
    # @param checkout [String]
    # @return [Array<Case, FreshCase>] the cases that have a speed or a size, with both builds as their participants
    def cases(cases, checkout)
      cases.reject { |one| one.is_a?(Case) && one.unit == "%" }.map do |one|
        ours = one.participants.first
        copy = one.dup
        copy.participants = [ours, other(one, ours, checkout)]
        copy.references = [] if copy.is_a?(Case)
        without_target(copy)
      end
    end

    # @param wanted [Array<String>] cases or groups; none is all
    # @param checkout [String]
    # @param threads [Integer]
    # @return [Boolean] whether both computed alike
    def run(wanted:, checkout:, threads:)
      Dir.mktmpdir("bench-") do |directory|
        outcomes = Runner.new(threads: threads).run(cases(Suite.new(directory).select(wanted), checkout))
        puts "", Table.text(outcomes), "", "ISA: #{ENV.fetch("CANDLE_CPU_ISA", "the best there is")}"
        outcomes.none? { |outcome| Outcome.wrong?(outcome) }
      end
    end

    def other(one, ours, checkout)
      Participant.new(worker: OURS, label: OTHER, model: ours.model, task: ours.task, check: check(one),
                      environment: ours.environment.merge("BENCH_LIBRARY" => File.expand_path("lib", checkout)))
    end

    # Two builds of ours choose the same tokens; else as the case compares peers.
    def check(one)
      return { measure: :agreement } if one.group == "llm"

      one.participants.drop(1).map(&:check).compact.first
    end

    def without_target(one)
      if one.is_a?(FreshCase)
        one.metrics = one.metrics.map { |metric| metric.dup.tap { |copy| copy.target = nil } }
      else
        one.target = nil
      end
      one
    end
  end
end
