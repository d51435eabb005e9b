# frozen_string_literal: true

require_relative "../../rakelib/support/arm_cycles"

RSpec.describe Tasks::ArmCycles do
  # A function with a loop in a loop, and one more of another name.
  let(:text) do
    <<~TEXT
      0000000000000100 <_R_multiply_singles>:
           100:       mov     x1, x0
           104:       ldr     q0, [x1]
           108:       ldr     q1, [x2], #16
           10c:       fmla    v2.4s, v1.4s, v0.s[0]
           110:       fmla    v3.4s, v1.4s, v0.s[1]
           114:       b.ne    0x108 <_R_multiply_singles+0x8>
           118:       cbnz    x3, 0x104 <_R_multiply_singles+0x4>
           11c:       b       0x120 <_R_multiply_singles+0x20>
           120:       ret

      0000000000000200 <_R_other>:
           200:       fmla    v2.4s, v1.4s, v0.4s
           204:       b       0x200 <_R_other>
    TEXT
  end
  let(:body) do
    ["ldr     q1, [x2], #16", "fmla    v2.4s, v1.4s, v0.s[0]", "fmla    v3.4s, v1.4s, v0.s[1]", "b.ne    target"]
  end

  it "finds the innermost loops of a function, and no jumps forward" do
    found = described_class::Disassembly.new(text)
    expect(found.loops(/multiply_singles/)).to eq([body])
    expect(found.loops(/other/)).to eq([["fmla    v2.4s, v1.4s, v0.4s", "b       target"]])
    expect(found.loops(/neither/)).to eq([])
  end

  describe "#results" do
    # Two multiplies in a cycle at most, and a loop that takes so many.
    def results(cycles_of_the_loop)
      stub_const("#{described_class}::KERNELS", [described_class::KERNELS.first])
      allow(described_class).to receive(:cycles) do |instructions, _|
        instructions == body ? cycles_of_the_loop : instructions.size / 2.0
      end
      described_class.new(text).results
    end

    it "compares the multiplies of a loop with what the processor can begin" do
      expect(results(1.0).map(&:share)).to all(eq(1.0))
      expect(results(1.0)).to all(be_passed)
      expect(results(2.0).map(&:share)).to all(eq(0.5))
    end

    it "fails loops below the goal" do
      expect(results(1.17)).to all(be_passed)
      expect(results(1.18).map(&:passed?)).to all(be(false))
    end

    it "prints a row for each processor" do
      rows = described_class.table(results(1.25))
      expect(rows.size).to eq(2 + described_class::PROCESSORS.size)
      expect(rows[2]).to eq("| f32 | Neoverse N1 | 2 | 1.2 | 80% |").or eq("| f32 | Neoverse N1 | 2 | 1.3 | 80% |")
    end

    it "refuses a program without the loop" do
      expect { described_class.new("").results }.to raise_error(ArgumentError, /no loop with fmla/)
    end
  end
end
