# frozen_string_literal: true

module Tasks
  module Metal
    # Whether runs on the software device are well.
    module Verdicts
      # Kernels of candle's that are wrong: the product with Q2_K writes out of bounds, attention needs more threadgroup
      # memory than there is for heads of 256, and sums of 16-bit numbers are added in 16 bits.
      FORBIDDEN = /mul_m[vm](_id)?_q2_K|sdpa|steel_attention|fast_sum_b?f16|fast_mean/

      private

      # @param run [Soft::Run]
      # @return [Boolean] whether it succeeded, nothing was found and no such kernel ran; says what is not
      def sound?(title, run)
        unexpected = run.findings + run.kernels.keys.grep(FORBIDDEN).map { |name| "#{name} is reached" }
        return true if run.status.success? && unexpected.empty?

        lines = run.output.lines
        puts "#{title}: #{run.status.success? ? "" : "FAILED "}#{unexpected.size} findings",
             unexpected.first(10), lines.grep(/FAILED|MISS|panicked|rror/).first(10), lines.last(5)
        false
      end
    end
  end
end
