# frozen_string_literal: true

require_relative "../../rakelib/support/doc_examples"

RSpec.describe Tasks::DocExamples do
  def instrument(code)
    described_class.instrument(code)
  end

  it "turns a line with a result into a check" do
    expect(instrument("1 + 1  # => 2\n")).to eq("doc_check((1 + 1), \"2\", 1)\n")
  end

  it "keeps an assignment an assignment" do
    expect(instrument("sum = 1 + 1 # => 2")).to eq("doc_check((sum = 1 + 1), \"2\", 1)\n")
  end

  it "leaves code alone that isn't a whole expression, prints, or has no result" do
    code = "[1, 2].each do |x|\n  puts x # => 1\nend # => [1, 2]\nx = 5\n"
    expect(instrument(code)).to eq(code)
  end

  it "reports an example whose result is another, and one that raises" do
    runner = described_class.new
    good, wrong, broken, vague = ["[1].sum # => 1", "[1].sum # => 2", "raise 'no'",
                                  "Object.new # => #<Object:...>"].map do |code|
      described_class::Example.new("example", code)
    end
    results = [good, wrong, broken, vague].map { |example| runner.send(:execute, example).last }
    expect(results).to eq([true, false, false, true])
  end

  it "runs shell blocks with the command of this tree" do
    good, bad = ["red-candle version", "red-candle dance"].map { |code| described_class::Example.new("x", code, "sh") }
    runner = described_class.new
    expect([good, bad].map { |example| runner.send(:execute, example).last }).to eq([true, false])
    titles = runner.examples.select(&:shell?).map(&:title)
    expect(titles).to include(start_with("docs/reference/cli.md"), start_with("README.md"))
  end
end
