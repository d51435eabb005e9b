# frozen_string_literal: true

require_relative "../../rakelib/support/metal/features"

RSpec.describe Tasks::Metal::Features do
  let(:tree) do
    <<~TREE
      red-candle-ext v2.0.0 (/red-candle/ext/candle)
      candle-core v0.11.1
      candle-core feature "metal"
      candle-metal-kernels v0.11.1
      candle-nn v0.11.1 (*)
      candle-nn feature "metal" (*)
    TREE
  end

  def run_with(trees)
    features = described_class.new
    allow(features).to receive(:shipped) { |target| trees.fetch(target[/darwin|linux/]) }
    expect { @held = features.run }.to output.to_stdout.and output(@complaint || /.*/).to_stderr
    @held
  end

  it "finds the candle crates and those with Metal code" do
    expect(described_class.crates(tree)).to eq(%w[candle-core candle-nn])
    expect(described_class.crates_with_metal(tree)).to eq(%w[candle-core candle-nn])
  end

  it "holds where all have it on macOS and none elsewhere" do
    expect(run_with("darwin" => tree, "linux" => tree.gsub(/.*feature.*\n/, ""))).to be(true)
  end

  it "fails where one lacks it, where Linux has it, and where the gem gains a crate" do
    plain = tree.gsub(/.*feature.*\n/, "")
    expect(run_with("darwin" => tree.sub("candle-nn feature \"metal\" (*)\n", ""), "linux" => plain)).to be(false)
    expect(run_with("darwin" => tree, "linux" => tree)).to be(false)
    @complaint = /candle-transformers/
    more = "candle-transformers v0.11.1\n"
    expect(run_with("darwin" => tree + more, "linux" => plain + more)).to be(false)
  end
end
