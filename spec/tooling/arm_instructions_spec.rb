# frozen_string_literal: true

require_relative "../../rakelib/support/arm_instructions"

RSpec.describe Tasks::ArmInstructions do
  let(:counts) { "0\t900\tload\n1\t640\tproduct\n1\t64\tnorm\n2\t80\tproduct\n2\t16\tmemcpy\tof two\n3\t5\texit\n" }

  it "reads the counts of each phase by function" do
    phases = described_class.phases(counts)
    expect(phases.map(&:instructions)).to eq([900, 704, 96, 5])
    expect(phases[2].most(1)).to eq([["product", 80]])
    expect(phases[2].functions).to include("memcpy\tof two" => 16)
    expect(described_class.phases("")).to eq([])
  end

  describe "#measure" do
    # A program writes the counts of its run; what it costs is in its name.
    def measure(folder, peers)
      arm = instance_double(Tasks::Arm, program: "ours")
      allow(Open3).to receive(:capture2e) do |environment, *command|
        @runs << [environment["CANDLE_CPU_ISA"], command[2], File.basename(command[-4])]
        File.write(File.join(folder, "counts"), command[-4] == "ours" ? counts : counts.gsub(/(?<=\t)(\d+)/, '\10'))
        ["", instance_double(Process::Status, success?: true)]
      end
      rows = []
      tool = described_class.new(arm, peers, folder)
      allow(tool).to receive(:plugin).and_return("count.so")
      tool.measure(["a/small.gguf"]) { |row, _| rows << row }
      rows
    end

    it "compares both programs on the processor of each level" do
      @runs = []
      Dir.mktmpdir do |folder|
        FileUtils.mkdir_p(File.join(folder, "llama.cpp"))
        FileUtils.touch(File.join(folder, "llama.cpp/count_i8mm"))
        rows = measure(folder, folder)
        expect(@runs).to eq([%w[dotprod neoverse-n1 ours], %w[i8mm max ours], %w[i8mm max count_i8mm]])
        expect(rows.map { |row| [row.level, row.ours, row.theirs] })
          .to eq([["dotprod", 11, nil], ["dotprod", 12, nil], ["i8mm", 11, 110], ["i8mm", 12, 120]])
      end
    end

    it "counts ours alone without llama.cpp" do
      @runs = []
      Dir.mktmpdir { |folder| expect(measure(folder, nil).map(&:ratio)).to all(be_nil) }
      expect(@runs.map(&:last)).to eq(%w[ours ours])
    end
  end

  it "prints millions and whether the goal was met" do
    rows = [described_class::Row.new("small", "i8mm", "a decoded token", 8_000_000, 10_000_000),
            described_class::Row.new("small", "i8mm", "a decoded token", 8_100_000, 10_000_000),
            described_class::Row.new("small", "dotprod", "a decoded token", 8_000_000, nil)]
    expect(described_class.table(rows).drop(2)).to eq(
      ["| small | i8mm | a decoded token | 8.0 M | 10.0 M | 0.8, pass |",
       "| small | i8mm | a decoded token | 8.1 M | 10.0 M | 0.81, miss |",
       "| small | dotprod | a decoded token | 8.0 M |  |  |"]
    )
  end
end
