# frozen_string_literal: true

require "json"

RSpec.describe Candle::GLiClass do
  let(:folder) { "spec/fixtures/tiny/gliclass" }
  let(:model) { described_class.from_pretrained(folder, device: "cpu") }

  %w[gliclass gliclass-weighted gliclass-mlp gliclass-hopfield].each do |name|
    it "scores as the library gliclass does with #{name}" do
      path = "spec/fixtures/tiny/#{name}"
      model = described_class.from_pretrained(path, device: "cpu")
      JSON.parse(File.read(File.join(path, "labels.json"))).each do |entry|
        found = model.classify(entry["texts"], labels: entry["labels"], multi_label: entry["multi_label"])
        found.zip(entry["scores"]) do |list, wanted|
          expect(list.map { |one| one[:label] }).to match_array(wanted.keys)
          list.each { |one| expect(one[:score]).to be_within(1e-5).of(wanted[one[:label]]) }
          expect(list).to eq(list.sort_by { |one| -one[:score] })
        end
      end
    end
  end

  it "gives a list for a text and lists for an Array, above a threshold and at most top_k" do
    one = model.classify("the dog", labels: %w[animal city])
    expect(model.classify(["the dog"], labels: %i[animal city])).to eq([one])
    expect(model.classify("the dog", labels: %w[animal city], threshold: 1)).to eq([])
    expect(model.classify("the dog", labels: %w[animal city], top_k: 1)).to eq(one.first(1))
  end

  it "cuts the text, and never the labels" do
    short = described_class.from_pretrained(folder, device: "cpu", max_length: 24)
    long = short.classify("the lazy dog " * 50, labels: %w[animal city])
    expect(long.size).to eq(2)
    expect { short.classify("a", labels: Array.new(30) { |n| "city #{n}" }) }
      .to raise_error(Candle::InvalidInputError, /fewer labels/)
  end

  it "runs zero-shot-classification, and is told by its files" do
    pipeline = Candle.pipeline("zero-shot-classification", folder)
    expect(pipeline.call("the dog", %w[animal city])[:scores].sum).to be_within(1e-5).of(1)
    expect(Candle::ModelKind.of(folder)).to eq(:gliclass)
  end
end
