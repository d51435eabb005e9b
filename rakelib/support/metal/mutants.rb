# frozen_string_literal: true

module Tasks
  module Metal
    # Small bugs, each of which the checks must catch.
    #
    # `file` is where the text is replaced, every time it occurs; `subject` is whose cases must notice: those of all its
    # kernels, unless `kernels` names some, since what only they can notice would otherwise wait for the others.
    Mutant = Struct.new(:name, :file, :subject, :kernels, :from, :to, keyword_init: true) do
      # @return [String] the broken source
      def apply(source)
        raise "mutant #{name}: #{file}.metal no longer has the text it replaces" unless source.include?(from)

        source.gsub(from) { to }
      end

      # @return [String] what SOFTMETAL_PLANT reads: a text of the subject's source, and the two halves of the bug
      def plant
        "#{SIGNS.fetch(subject)}\n#{from}\n=====\n#{to}\n"
      end
    end

    # A text that only one source has.
    SIGNS = { "norm" => "struct NormParameters", "softmax" => "struct SoftmaxParameters",
              "activation" => "struct ActivationParameters", "rope" => "struct RopeParameters",
              "pooling" => "struct PoolParameters", "blocks" => "struct BlockParameters" }.freeze

    BARRIER = "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    SUM_BARRIER = "#{BARRIER}    return simd_sum".freeze
    MAX_BARRIER = "#{BARRIER}    return simd_max".freeze

    MUTANTS = [
      { name: "dropped barrier of the sum", file: "common", subject: "norm", from: SUM_BARRIER,
        to: "    return simd_sum" },
      { name: "dropped barrier of the maximum", file: "common", subject: "softmax", from: MAX_BARRIER,
        to: "    return simd_max" },
      { name: "dropped barrier of the pooling", file: "pooling", subject: "pooling", from: BARRIER, to: "" },
      { name: "barrier that orders no memory", file: "common", subject: "norm",
        from: "mem_flags::mem_threadgroup", to: "mem_flags::mem_none" },
      { name: "partial sums used twice", file: "norm", subject: "norm",
        from: "partials + MAXIMUM_SIMDGROUPS, at", to: "partials, at" },
      { name: "lanes leave before the barrier", file: "pooling", subject: "pooling",
        from: "    threadgroup float *mine", to: "    if (available == 0) return;\n    threadgroup float *mine" },
      { name: "reduction in a divergent branch", file: "norm", subject: "norm",
        from: "    const float width = float(p.columns);",
        to: "    if (4 * at.index >= p.columns) return;\n    const float width = float(p.columns);" },
      { name: "one simdgroup too few", file: "common", subject: "pooling",
        from: "at.lane < at.simdgroups ?", to: "at.lane + 1 < at.simdgroups ?" },
      { name: "unwritten partial sums read", file: "common", subject: "norm",
        from: "at.lane < at.simdgroups ?", to: "at.lane <= at.simdgroups ?" },
      { name: "tail one element long", file: "common", subject: "norm",
        from: "if (at.index < columns % 4)", to: "if (at.index <= columns % 4)" },
      { name: "tail one element short", file: "common", subject: "softmax",
        from: "if (at.index < columns % 4)", to: "if (at.index + 1 < columns % 4)" },
      { name: "whole vectors rounded up", file: "common", subject: "norm",
        from: "const uint whole = columns / 4;", to: "const uint whole = (columns + 3) / 4;" },
      { name: "rest of a long row forgotten", file: "common", subject: "norm",
        from: "v < whole; v += at.count", to: "v < whole && false; v += at.count" },
      { name: "epsilon added twice", file: "norm", subject: "norm",
        from: "variance + p.epsilon", to: "variance + p.epsilon + p.epsilon" },
      { name: "squares accumulated in half", file: "norm", subject: "norm",
        from: "        squares += total(d * d);", to: "        squares = float(half(squares + total(d * d)));" },
      { name: "statistics kept in the storage type", file: "norm", subject: "norm",
        from: "    writer.inverse = 1.0f / sqrt(variance + p.epsilon);",
        to: "    writer.inverse = float(T(1.0f / sqrt(float(T(variance)) + p.epsilon)));" },
      { name: "variance from the mean of squares", file: "norm", subject: "norm",
        from: "const float4 d = v - splat(estimate);", to: "const float4 d = v;" },
      { name: "mean not corrected", file: "norm", subject: "norm",
        from: "((v - estimate) - drift) * inverse", to: "(v - estimate) * inverse" },
      { name: "sums rounded before they are normalized", file: "norm", subject: "norm", kernels: %w[add_layer_norm],
        from: "{ return float(x[i]) + float(residual[i]); }",
        to: "{ return float(T(float(x[i]) + float(residual[i]))); }" },
      { name: "sums written where the norms go", file: "norm", subject: "norm", kernels: %w[add_layer_norm],
        from: "writer.sums = row;", to: "writer.sums = writer.out;" },
      { name: "sums of strided rows written side by side", file: "norm", subject: "norm", kernels: %w[add_layer_norm],
        from: "writer.sums = row;", to: "writer.sums = x + ulong(at.row) * p.columns;" },
      { name: "weight offset forgotten", file: "norm", subject: "norm", kernels: %w[rms_norm],
        from: "    writer.weight_offset = p.weight_offset;", to: "    writer.weight_offset = 0.0f;" },
      { name: "row stride ignored", file: "common", subject: "rope",
        from: "ulong(inner) * starts.inner_stride", to: "ulong(inner)" },
      { name: "sizes of two dimensions swapped", file: "common", subject: "norm",
        from: "rest % starts.middle_size", to: "rest % starts.inner_size" },
      { name: "alignment taken for granted", file: "common", subject: "activation",
        from: "    if (aligned) {", to: "    if (true) {" },
      { name: "boolean mask missing", file: "softmax", subject: "softmax", kernels: %w[softmax_masked],
        from: "(flags & HAS_BOOLEAN) && boolean[i] == 0", to: "false" },
      { name: "additive mask as a plain number", file: "softmax", subject: "softmax", kernels: %w[softmax_masked],
        from: "!(flags & HAS_ADDITIVE) || !(bias <= lowest_finite(x))", to: "true" },
      { name: "length off by one", file: "softmax", subject: "softmax", kernels: %w[softmax_masked],
        from: "i >= length", to: "i > length" },
      { name: "wrong scale", file: "softmax", subject: "softmax", kernels: %w[softmax_masked],
        from: "fma(v, scale, bias)", to: "fma(v, 1.0f, bias)" },
      { name: "maximum not subtracted", file: "softmax", subject: "softmax",
        from: "exp(v.x - maximum)", to: "exp(v.x)" },
      { name: "empty row divided by zero", file: "softmax", subject: "softmax",
        from: "highest == -INFINITY || sum != sum", to: "sum != sum && false" },
      { name: "masked elements of a NaN row are NaN", file: "softmax", subject: "softmax", kernels: %w[softmax_masked],
        from: "highest == -INFINITY || sum != sum", to: "highest == -INFINITY" },
      { name: "sign of the rotation swapped", file: "rope", subject: "rope",
        from: "a * c - b * s", to: "a * c + b * s" },
      { name: "pairs not interleaved", file: "rope", subject: "rope",
        from: "rotation.rotate(k, 2 * k, 2 * k + 1)", to: "rotation.rotate(k, k, k + pairs)" },
      { name: "position of another row", file: "rope", subject: "rope",
        from: "positions[row_start(p.positions, at.y)]", to: "positions[0]" },
      { name: "position beyond the tables", file: "rope", subject: "rope",
        from: "position < p.known_positions", to: "position <= p.known_positions" },
      { name: "copied part one short", file: "rope", subject: "rope",
        from: "min(start + 4, p.columns)", to: "min(start + 3, p.columns)" },
      { name: "tail of the normal distribution too coarse", file: "activation", subject: "activation",
        kernels: %w[activation], from: "fma(-0.5f, rounding, 1.0f)", to: "1.0f" },
      { name: "gelu by tanh with a wrong constant", file: "activation", subject: "activation",
        from: "0.044715f", to: "0.04471f" },
      { name: "gate and up swapped", file: "activation", subject: "activation", kernels: %w[gated],
        from: "y = y * load4(up_row + i, aligned);", to: "y = y * load4(gate_row + i, aligned);" },
      { name: "sequence one token too long", file: "pooling", subject: "pooling",
        from: "token < last;", to: "token <= last;" },
      { name: "mean over the next power", file: "pooling", subject: "pooling",
        from: "float(last - first)", to: "float(last - first + 1)" },
      { name: "empty sequence divided by zero", file: "pooling", subject: "pooling",
        from: "last > first ? float(last - first) : 1.0f", to: "float(last - first)" },
      { name: "norm without its lower bound", file: "pooling", subject: "pooling", kernels: %w[l2_normalize],
        from: "norm < p.epsilon ? p.epsilon : norm", to: "norm" },
      { name: "tiles written while they are read", file: "blocks", subject: "blocks", kernels: %w[blocks q4_0],
        from: "        // The tiles of the step before are no longer read.\n    #{BARRIER}", to: "" },
      { name: "results read before they are written", file: "blocks", subject: "blocks", kernels: %w[blocks q4_0],
        from: "#{BARRIER}    for (uint at = index;", to: "    for (uint at = index;" },
      { name: "outputs beyond the last", file: "blocks", subject: "blocks", kernels: %w[blocks q4_0],
        from: "min(first_output + column, p.outputs - 1)", to: "(first_output + column)" },
      { name: "rows beyond the last of a tile", file: "blocks", subject: "blocks", kernels: %w[blocks q4_0],
        from: "first + row >= p.rows", to: "false" },
      { name: "rows beyond the last of a few", file: "blocks", subject: "blocks", kernels: %w[blocks q4_0],
        from: "min(FEW_ROWS, p.rows - first)", to: "FEW_ROWS" },
      { name: "a run too many", file: "blocks", subject: "blocks", kernels: %w[blocks q4_0],
        from: "run < p.inputs / RUN", to: "run <= p.inputs / RUN" },
      { name: "runs of a table beyond its row", file: "blocks", subject: "blocks", kernels: %w[blocks q4_0],
        from: "at.x >= p.inputs / RUN", to: "false" },
      { name: "bias forgotten", file: "blocks", subject: "blocks", kernels: %w[blocks q4_0],
        from: "sum += float(bias[output]);", to: "" },
      { name: "residual of another row", file: "blocks", subject: "blocks", kernels: %w[blocks q4_0],
        from: "sum += float(residual[at]);", to: "sum += float(residual[output]);" },
      { name: "products summed in half", file: "blocks", subject: "blocks", kernels: %w[blocks q4_0],
        from: "sums[r] += total(", to: "sums[r] = float(half(sums[r])) + total(" },
      { name: "fifth bits forgotten", file: "blocks", subject: "blocks", kernels: %w[blocks q5_1],
        from: "((fifth >> i) & 1) << 4", to: "0" },
      { name: "upper bits of a scale forgotten", file: "blocks", subject: "blocks", kernels: %w[blocks q4_k],
        from: " | ((packed[j - 4] >> 6) << 4)", to: "" },
      { name: "minimum added", file: "blocks", subject: "blocks", kernels: %w[blocks q5_k],
        from: "-half_at(block, 2) * float(minimum)", to: "half_at(block, 2) * float(minimum)" },
      { name: "scales without a sign", file: "blocks", subject: "blocks", kernels: %w[blocks q6_k],
        from: "float(int(block[192 + run] ^ 128) - 128)", to: "float(block[192 + run])" },
      { name: "codes of another run", file: "blocks", subject: "blocks", kernels: %w[blocks q2_k],
        from: "run % 8 / 2 * 2", to: "run % 8 / 2" },
      { name: "a bit of the code in the wrong place", file: "blocks", subject: "blocks", kernels: %w[blocks q3_k],
        from: "run / 2, 1, 2 }", to: "run / 2, 1, 3 }" },
      { name: "levels in a row", file: "blocks", subject: "blocks", kernels: %w[blocks iq4_xs],
        from: "scale * UNEVEN_LEVELS[two & 15]", to: "scale * (float(two & 15) - 8.0f)" }
    ].map { |attributes| Mutant.new(**attributes) }.freeze
  end
end
