# frozen_string_literal: true

require_relative "../../bench/harness/model_table"

RSpec.describe Bench::ModelTable do
  let(:page) { File.read(described_class::PAGE) }
  let(:published) { Bench::Results.read(Bench::Results::PUBLISHED) }

  it "is in docs/reference/models.md as the published run has it" do
    written = Bench::Document.insert(page, described_class.current, described_class::MARKERS)
    expect(written).to eq(page), "run rake bench:plot"
  end

  it "names a case for every value" do
    names = described_class::ROWS.flat_map { |_, latency, rate, *rest| [*latency, *rate].map(&:last) + rest }
    expect(names.compact - published.fetch("cases").map { |one| one["name"] }).to be_empty
  end

  it "leaves out what a run does not have" do
    cases = published.fetch("cases").reject { |one| one["name"] == "memory_f32_peak" }
    failed = cases.map { |one| one["name"] == "latency_8" ? one.merge("status" => "FAILED") : one }
    row = described_class.section(published.merge("cases" => failed)).lines.grep(/all-MiniLM-L6-v2`, f32/).first
    expect(row).not_to include("8 tokens 1")
    expect(row).to match(/\| – \| \d+\.\d ms \|$/)
  end
end
