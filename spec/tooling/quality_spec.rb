# frozen_string_literal: true

require "spec_helper"
require "tmpdir"

require_relative "../../rakelib/support/quality"

RSpec.describe Quality do
  let(:source) { File.join(TinyModels.path("decoders"), "qwen3") }

  it "measures types beside the dense weights" do
    Dir.mktmpdir do |directory|
      text = File.join(directory, "text.txt").tap { |path| File.write(path, "the quick brown fox jumps " * 6) }
      quality = described_class.new(source, text, types: %w[q8_0 q4_0 iq2_xs], tokens: 60, calibration: text)
      rows = nil
      expect { rows = quality.run }.to output(/dense.*q8_0.*q4_0 with imatrix/m).to_stdout
      # Types below three bits are measured with an importance matrix alone.
      expect(rows.map { |row| row[:type] })
        .to eq(["dense", "q8_0", "q8_0 with imatrix", "q4_0", "q4_0 with imatrix", "iq2_xs with imatrix"])
      exact, coarse = rows.values_at(1, 3)
      expect(exact[:kl_divergence]).to be_between(0, coarse[:kl_divergence])
      expect(rows.map { |row| row[:tokens] }.uniq.size).to eq(1)
    end
  end

  it "has a place in the page for its table" do
    expect(File.read(described_class::PAGE)).to match(described_class::TABLE)
  end
end
