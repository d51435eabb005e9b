# frozen_string_literal: true

require "open3"
require_relative "../../rakelib/support/build"

RSpec.describe "Rust dependencies" do
  # @return [Hash{String => Array<String>}] the sets of features that each crate is built with, by its name and version
  def crates(package, edges)
    output, errors, status = Open3.capture3("cargo", "tree", "--locked", "--package", package, "--edges", edges,
                                            "--prefix", "none", "--format", "{p}\t{f}", chdir: Tasks::Build::ROOT)
    raise errors unless status.success?

    lines = output.lines(chomp: true).map { |line| line.sub(/ \(\*\)\z/, "").split("\t", 2) }
    lines.group_by(&:first).transform_values { |pairs| pairs.map(&:last).uniq }
  end

  let(:shipped) { crates("red-candle-ext", "normal,build") }
  let(:tested) { crates("red-candle-engine", "normal,build,dev") }
  let(:own) { %w[red-candle-base red-candle-kernels red-candle-formats red-candle-engine] }

  it "leave candle-transformers out of the gem, and give it to the tests" do
    expect(shipped.keys.grep(/\Acandle-transformers /)).to be_empty
    expect(tested.keys.grep(/\Acandle-transformers /).size).to eq(1)
  end

  it "have the same features in the gem and in the tests, so that nothing is built twice" do
    common = shipped.keys & tested.keys
    expect(common.size).to be > 100
    expect(common.reject { |name| (tested[name] - shipped[name]).empty? }).to be_empty
  end
  # Two workspaces, hence two lock files; the targets are built with --locked.
  it "are those of the engine, in the same versions, where its readers are fuzzed" do
    engine, fuzzed = %w[Cargo.lock ext/fuzz/Cargo.lock].map do |path|
      lock = File.read(File.join(Tasks::Build::ROOT, path))
      sections = own.map { |crate| lock[/^name = "#{crate}"\n.*?^\]/m] }
      sections.join("\n").scan(/^ "([\w-]+)/).flatten.uniq.to_h do |name|
        [name, lock.scan(/^name = "#{name}"\nversion = "(.+)"/).flatten]
      end
    end
    tests_and_gpus = %w[candle-metal-kernels candle-transformers objc2 objc2-metal]
    expect(engine.keys - fuzzed.keys).to match_array(tests_and_gpus)
    expect(fuzzed.reject { |name, versions| (versions - engine.fetch(name)).empty? }).to be_empty
  end
end
