# frozen_string_literal: true

module Tasks
  module Metal
    # Small bugs in what unpacks quantized blocks, each of which the cases of one format must catch.
    BLOCK_MUTANTS = [
      { name: "runs of a table beyond its row", file: "blocks", subject: "blocks", kernels: %w[blocks q4_0],
        from: "at.x >= p.inputs / RUN", to: "false" },
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
        from: "scale * UNEVEN_LEVELS[two & 15]", to: "scale * (float(two & 15) - 8.0f)" },
      { name: "codes of another half", file: "blocks", subject: "blocks", kernels: %w[blocks nf4],
        from: "(word >> (4 * j)) & 15]", to: "(word >> (4 * (j ^ 1))) & 15]" },
      { name: "rounded down", file: "blocks", subject: "blocks", kernels: %w[blocks nf4_bf16],
        from: "(bits + 0x7fff + ((bits >> 16) & 1))", to: "bits" },
      { name: "not rounded", file: "blocks", subject: "blocks", kernels: %w[blocks fp4_f16],
        from: "return float(half(v));", to: "return v;" },
      { name: "the scale of the first run for all", file: "blocks", subject: "blocks", kernels: %w[blocks nvfp4],
        from: "float_at(block, 4 * run), E2M1_LEVELS", to: "float_at(block, 0), E2M1_LEVELS" },
      { name: "levels without a sign", file: "blocks", subject: "blocks", kernels: %w[blocks iq2],
        from: "-8.0f, -25.0f, -43.0f", to: "8.0f, 25.0f, 43.0f" },
      { name: "floats without a sign", file: "blocks", subject: "blocks", kernels: %w[blocks fp8],
        from: "((code & 128) << 8) | ", to: "" },
      { name: "minimum of another format", file: "blocks", subject: "blocks", kernels: %w[blocks int4],
        from: "0.0f, float_at(block, 4) }", to: "0.0f, float_at(block, 0) }" },
      { name: "bytes as signed numbers", file: "blocks", subject: "blocks", kernels: %w[blocks int8],
        from: "steps.number((word >> (8 * j)) & 255)",
        to: "steps.number(((word >> (8 * j)) & 127) - ((word >> (8 * j)) & 128))" },
      { name: "the minimum of the first half for both", file: "blocks", subject: "blocks", kernels: %w[blocks int4_32],
        from: "float_at(block, 8 + 4 * half_of_block)", to: "float_at(block, 8)" }
    ].freeze
  end
end
