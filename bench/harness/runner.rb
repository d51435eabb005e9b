# frozen_string_literal: true

require_relative "case"
require_relative "comparison"
require_relative "machine"
require_relative "outcome"
require_relative "worker"

module Bench
  # Runs cases. Workers live as long as the runner; only one of them works at
  # a time, and they take turns round by round, so that whatever disturbs the
  # machine disturbs all of them.
  class Runner
    # @return [Hash{String => String}] by library
    attr_reader :versions

    # @param threads [Integer] of every worker
    # @param output [IO] for progress
    def initialize(threads:, output: $stderr)
      @threads = threads
      @output = output
      @workers = {}
      @versions = {}
    end

    # @param cases [Array<Case, FreshCase>]
    # @yieldparam outcomes [Array<Hash>] those so far, after every case
    # @return [Array<Hash>] outcomes, in order
    def run(cases)
      cases.each_with_index.with_object([]) do |(one, index), outcomes|
        @output.puts "[#{index + 1}/#{cases.size}] #{one.name}"
        outcomes.concat(one.is_a?(FreshCase) ? fresh(one) : [timed(one)])
        yield outcomes if block_given?
      end
    ensure
      @workers.each_value(&:stop)
    end

    private

    def timed(one)
      comparisons = compare(one)
      amount = one.amount == :tokens ? tokens(one) : one.amount
      samples = one.participants.to_h { |participant| [participant.label, []] }
      one.rounds.times do |round|
        one.participants.rotate(round).each do |participant|
          samples[participant.label] << value(one.unit, ask(participant, one.input, repeat: one.repeat), amount)
        end
      end
      Outcome.build(row(one), samples, unjudged: unjudged(one), comparisons: comparisons)
    rescue Worker::Failure, SystemCallError, RuntimeError => e
      @output.puts "  #{e.message}"
      Outcome.failed(row(one), e.message)
    end

    def row(one)
      { name: one.name, group: one.group, title: one.title, unit: one.unit, better: one.better, target: one.target }
    end

    def unjudged(one)
      one.participants.reject(&:judged).map(&:label)
    end

    def value(unit, reply, amount)
      case unit
      when "ms" then reply[:seconds] * 1e3
      when "%" then reply[:ruby_seconds] / reply[:seconds] * 100
      else amount / reply[:seconds]
      end
    end

    def tokens(one)
      ask(one.participants.first, one.input, task: "count_tokens", result: true)[:result].sum
    end

    # Also what warms everyone up.
    def compare(one)
      ours, *peers = one.participants
      results = Hash.new { |known, key| known[key] = ask(ours, key.last, task: key.first, result: true)[:result] }
      results[[ours.task, one.input]]
      (peers + one.references).map { |other| verdict(one, other, results) }
    end

    def verdict(one, other, results)
      check = other.check
      ask(other, one.input) if check[:theirs]
      theirs = ask(other, one.input, task: check.fetch(:theirs, other.task), result: true)[:result]
      mine = results[[check.fetch(:ours, one.participants.first.task), one.input]]
      found = Comparison.check(check[:measure], mine, theirs, **check.except(:measure, :ours, :theirs))
      { "with" => other.label }.merge(found.to_h.transform_keys(&:to_s))
    end

    def ask(participant, input, task: participant.task, repeat: 1, result: false)
      worker = worker_of(participant)
      worker.request("load", **loading(participant))
      worker.request("run", key: loading(participant)[:key], task: task, input: input, repeat: repeat, result: result)
    rescue Worker::Death
      @workers.delete(identity(participant))&.stop
      raise
    end

    def loading(participant)
      model = participant.model
      path = model[:path].respond_to?(:call) ? model[:path].call : model[:path]
      { key: [model[:kind], path, model[:dtype]].join(" "), kind: model[:kind], path: path, dtype: model[:dtype] }
    end

    def worker_of(participant)
      @workers[identity(participant)] ||= start(participant).first
    end

    def identity(participant)
      [participant.worker, participant.environment]
    end

    # @return [Array(Worker, Hash)] the worker and how it introduced itself
    def start(participant)
      worker = Worker.start(participant.worker, threads: @threads, environment: participant.environment)
      greeting = worker.request("hello")
      Machine.refuse_debug(greeting[:build]) if greeting[:build]
      @versions.merge!(greeting[:versions].transform_keys(&:to_s))
      [worker, greeting]
    end

    def fresh(one)
      samples = processes(one)
      one.metrics.map do |metric|
        values = samples.transform_values { |list| list.map { |facts| facts[metric.kind] } }
        Outcome.build(fresh_row(one, metric), values)
      end
    rescue Worker::Failure, SystemCallError, RuntimeError => e
      @output.puts "  #{e.message}"
      one.metrics.map { |metric| Outcome.failed(fresh_row(one, metric), e.message) }
    end

    # @return [Hash{String => Array<Hash>}] what was measured in each process, by participant
    def processes(one)
      samples = one.participants.to_h { |participant| [participant.label, []] }
      one.rounds.times do |round|
        one.participants.rotate(round).each do |participant|
          samples[participant.label] << measure_process(participant, one.input)
        end
      end
      samples
    end

    def fresh_row(one, metric)
      { name: "#{one.name}_#{metric.kind}", group: one.group, title: metric.title, unit: metric.unit,
        better: metric.better, target: metric.target }
    end

    # @return [Hash{Symbol => Float}] milliseconds, and megabytes
    def measure_process(participant, input)
      worker, greeting = start(participant)
      arguments = loading(participant)
      seconds = worker.request("load", **arguments)[:seconds]
      worker.request("run", key: arguments[:key], task: participant.task, input: input, repeat: 1)
      { import: greeting[:import_seconds] * 1e3, load: seconds * 1e3,
        peak: worker.request("memory")[:peak_bytes] / 1e6 }
    ensure
      worker&.stop
    end
  end
end
