# frozen_string_literal: true

module GpuBench
  # Numbers out of results, and how far two lots of them are apart.
  module Numbers
    module_function

    # @return [Array<Float>] every Float inside, in order
    def floats(object)
      case object
      when Float then [object]
      when Hash then floats(object.values)
      when Array then object.flat_map { |inner| floats(inner) }
      else []
      end
    end

    # @return [Float] the largest difference; NaN when the numbers are not as many or not all finite
    def difference(one, other)
      one = floats(one)
      other = floats(other)
      return Float::NAN if one.empty? || one.size != other.size || !(one + other).all?(&:finite?)

      one.zip(other).map { |a, b| (a - b).abs }.max
    end

    # @return [Float] the mean difference
    def mean_difference(one, other)
      return Float::NAN if difference(one, other).nan?

      one.zip(other).sum { |a, b| (a - b).abs } / one.size
    end

    # @return [Float] 1 minus the lowest cosine of a pair of vectors
    def angle(one, other)
      return Float::NAN if difference(one, other).nan?

      one.zip(other).map { |a, b| 1 - cosine(a, b) }.max
    end

    def cosine(one, other)
      dot = ->(a, b) { a.zip(b).sum { |x, y| x * y } }
      dot.call(one, other) / Math.sqrt(dot.call(one, one) * dot.call(other, other))
    end

    # Runs the block, which must end with its result in Ruby's hands.
    #
    # @return [Float] the median in milliseconds after a warm-up
    def median_ms(repetitions, warm_up: 3, &work)
      warm_up.times(&work)
      times = Array.new(repetitions) do
        start = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        work.call
        (Process.clock_gettime(Process::CLOCK_MONOTONIC) - start) * 1000
      end
      times.sort[times.size / 2]
    end
  end
end
