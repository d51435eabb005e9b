# frozen_string_literal: true

require "fileutils"
require "json"
require "tmpdir"

RSpec.describe Candle::GLiClass do
  let(:folder) { TinyModels.path("gliclass") }
  let(:model) { described_class.from_pretrained(folder, device: "cpu") }

  %w[gliclass gliclass-weighted gliclass-mlp gliclass-hopfield gliclass-bi].each do |name|
    it "scores as the library gliclass does with #{name}" do
      path = TinyModels.path(name)
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

  it "reads labels apart from the text in a bi-encoder, of which each text is cut" do
    model = described_class.from_pretrained(TinyModels.path("gliclass-bi"), device: "cpu", max_length: 8)
    labels = Array.new(40) { |number| "city #{number}" }
    long, longer = model.classify(["the lazy dog " * 20, "the lazy dog " * 50], labels: labels)
    expect(long.size).to eq(40)
    expect(longer).to eq(long)
    few = model.classify("the lazy dog", labels: labels.first(2)).to_h { |entry| entry.values_at(:label, :score) }
    all = model.classify("the lazy dog", labels: labels).to_h { |entry| entry.values_at(:label, :score) }
    few.each { |label, score| expect(all[label]).to be_within(1e-5).of(score) }
  end

  it "refuses bi-encoders that pool padding, and other architectures" do
    config = JSON.parse(File.read(TinyModels.path("gliclass-bi/config.json")))
    { "pooling_strategy" => "avg", "architecture_type" => "bi-encoder-fused" }.each do |key, value|
      Dir.mktmpdir do |path|
        FileUtils.cp_r(TinyModels.path("gliclass-bi/."), path)
        File.write(File.join(path, "config.json"), JSON.generate(config.merge(key => value)))
        expect { described_class.from_pretrained(path, device: "cpu") }
          .to raise_error(Candle::UnsupportedModelError, /#{key}/)
      end
    end
  end

  it "runs zero-shot-classification, and is told by its files" do
    pipeline = Candle.pipeline("zero-shot-classification", folder)
    expect(pipeline.call("the dog", %w[animal city])[:scores].sum).to be_within(1e-5).of(1)
    expect(Candle::ModelKind.of(folder)).to eq(:gliclass)
  end
end
