# frozen_string_literal: true

require_relative "../../rakelib/support/arm_peers"

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

    it "lets loops without a goal pass" do
      loops = results(10.0).each { |result| result.kernel = result.kernel.dup.tap { |kernel| kernel.goal = nil } }
      expect(loops).to all(be_passed)
    end

    it "counts products of a weight with an input once, however many planes the input has" do
      expect(results(2.0).map(&:products)).to all(eq(2 * 4 / 2.0))
      planes = results(2.0).each { |result| result.kernel = result.kernel.dup.tap { |kernel| kernel.planes = 2 } }
      expect(planes.map(&:products)).to all(eq(2.0))
    end

    it "prints a row for each loop, those of the same work below each other" do
      other = described_class::Kernel.new("other", /other/, "fmla", nil, 1)
      peer = Tasks::ArmPeers::Loop.new("f32", "theirs", "*", //, "fmla")
      all = [results(2.0), other, peer].then do |ours, *kernels|
        ours + kernels.map { |kernel| ours.last.dup.tap { |result| result.kernel = kernel } }
      end
      rows = described_class.table(all)
      expect(rows.first).to eq("| loop | by | Neoverse N1 | Neoverse V1 | Neoverse V2 | Apple M1 |")
      expect(rows[2]).to eq("| f32 | ours | 4.0, 50 % | 4.0, 50 % | 4.0, 50 % | 4.0, 50 % |")
      expect(rows.drop(3)).to eq(["| f32 | theirs |  |  |  | 4.0, 50 % |", "| other | ours |  |  |  | 4.0, 50 % |"])
    end

    it "takes the loop with as many multiplies as asked for" do
      two = described_class::Kernel.new("f32", /multiply_singles|other/, "fmla", nil, 1, 1)
      allow(described_class).to receive(:cycles) { |instructions, _| instructions.size }
      expect(described_class.new(text, [two]).results.map(&:multiplies)).to all(eq(1))
    end

    it "refuses a program without the loop" do
      expect { described_class.new("").results }.to raise_error(ArgumentError, /no loop with fmla/)
    end
  end

  describe Tasks::ArmPeers do
    it "looks for nothing without a folder, and says what a folder lacks" do
      expect(described_class.new(nil).results).to eq([])
      Dir.mktmpdir do |folder|
        peers = described_class.new(folder)
        expect(peers.results).to eq([])
        expect(peers.missing.size).to eq(described_class::KLEIDIAI.size + described_class::LLAMA_CPP.size)
        expect(peers.missing).to include(start_with("f32 of KleidiAI is missing: there is no *_f32p16x1b"))
      end
    end

    it "looks at the named functions of an object" do
      Dir.mktmpdir do |folder|
        FileUtils.mkdir_p(File.join(folder, "llama.cpp"))
        object = File.join(folder, "llama.cpp/sgemm.cpp.o").tap { |path| FileUtils.touch(path) }
        allow(Tasks::ArmCycles).to receive(:disassemble).with(object, [/gemm_bloc/])
                                                    .and_return(text.gsub("multiply_singles", "gemm_bloc"))
        allow(Tasks::ArmCycles).to receive(:cycles) { |instructions, _| instructions.size / 2.0 }
        results = described_class.new(folder).results
        expect(results.map { |result| result.kernel.library }.uniq).to eq(["llama.cpp"])
        expect(results.map { |result| result.kernel.work }.uniq).to eq(["f32"])
      end
    end
  end
end
