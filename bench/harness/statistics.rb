# frozen_string_literal: true

module Bench
  # What the samples of a case come down to.
  module Statistics
    module_function

    # @param values [Array<Numeric>]
    # @return [Float] the middle one, or the mean of the two in the middle
    def median(values)
      raise ArgumentError, "no values to take the median of" if values.empty?

      sorted = values.sort
      (sorted[(sorted.size - 1) / 2] + sorted[sorted.size / 2]) / 2.0
    end

    # @param values [Array<Numeric>]
    # @return [Float] the distance of the extremes as a share of the median: how much the machine wavered
    def spread(values)
      middle = median(values)
      middle.zero? ? 0.0 : (values.max - values.min) / middle
    end

    # @param ours [Numeric]
    # @param theirs [Numeric]
    # @param better [Symbol] `:higher` or `:lower`
    # @return [Float] how many times better ours is; below 1 it is worse
    def ratio(ours, theirs, better:)
      case better
      when :higher then ours / theirs.to_f
      when :lower then theirs / ours.to_f
      else raise ArgumentError, "better must be :higher or :lower, not #{better.inspect}"
      end
    end
  end
end
