# frozen_string_literal: true

require "tmpdir"
require_relative "../../bench/harness/against"

RSpec.describe Bench::Against do
  let(:directory) { Dir.mktmpdir }
  let(:cases) { described_class.cases(Bench::Suite.new(directory).cases, "elsewhere") }

  after { FileUtils.rm_rf(directory) }

  it "puts two builds of ours side by side, whatever the case's peers are" do
    expect(cases.map { |one| one.participants.map(&:worker) }).to all(eq([Bench::OURS, Bench::OURS]))
    libraries = cases.map { |one| one.participants.map { |participant| participant.environment["BENCH_LIBRARY"] } }
    expect(libraries.uniq).to eq([[nil, File.expand_path("elsewhere/lib")]])
  end

  it "compares what they compute, and judges no speed" do
    timed = cases.grep(Bench::Case)
    expect(timed.size).to be > 20
    expect(timed.map { |one| one.participants.last.check }).to all(include(:measure))
    languages = timed.select { |one| one.group == "llm" }
    expect(languages.map { |one| one.participants.last.check }.uniq).to eq([{ measure: :agreement }])
    expect(timed.map(&:target).compact).to be_empty
    expect(cases.grep(Bench::FreshCase).flat_map(&:metrics).filter_map(&:target)).to be_empty
  end
end
