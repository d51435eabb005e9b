# frozen_string_literal: true

require_relative "statistics"

module Bench
  # One row of the table, as it is written to the file: the samples of every
  # participant, who was best, and whether the target is reached.
  module Outcome
    PASS = "pass"
    MISS = "miss"
    SHOWN = "-"
    MISMATCH = "MISMATCH"
    FAILED = "FAILED"

    module_function

    # @param row [Hash] `name group title unit better target`
    # @param samples [Hash{String => Array<Float>}] by participant, ours among them
    # @param unjudged [Array<String>] peers that are only shown
    # @param comparisons [Array<Hash>]
    # @return [Hash{String => Object}]
    def build(row, samples, unjudged: [], comparisons: [])
      better = row.fetch(:better)
      values = samples.transform_values { |list| summary(list) }
      ratios = (samples.keys - [OURS]).to_h do |peer|
        [peer, Statistics.ratio(values[OURS]["median"], values[peer]["median"], better: better)]
      end
      best = (ratios.keys - unjudged).min_by { |peer| ratios[peer] }
      head(row).merge("values" => values, "ratios" => ratios, "best_peer" => best, "ratio" => ratios[best],
                      "comparisons" => comparisons,
                      "status" => status(row[:target], values[OURS]["median"], ratios[best], comparisons))
    end

    # @return [Hash{String => Object}] a row that could not be measured
    def failed(row, message)
      head(row).merge("values" => {}, "ratios" => {}, "comparisons" => [], "status" => FAILED, "error" => message)
    end

    # @return [Boolean] whether something went wrong; a missed target has not
    def wrong?(outcome)
      [MISMATCH, FAILED].include?(outcome["status"])
    end

    def head(row)
      target = row[:target]
      { "name" => row.fetch(:name), "group" => row.fetch(:group), "title" => row.fetch(:title),
        "unit" => row.fetch(:unit), "target" => target && target.to_h.compact.transform_keys(&:to_s),
        "target_text" => target.to_s }
    end

    def summary(list)
      { "median" => Statistics.median(list), "spread" => Statistics.spread(list), "samples" => list }
    end

    def status(target, value, ratio, comparisons)
      return MISMATCH unless comparisons.all? { |comparison| comparison["equal"] }
      return SHOWN if target.nil?

      target.reached?(value, ratio) ? PASS : MISS
    end
  end
end
