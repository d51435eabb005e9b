# frozen_string_literal: true

require "json"

RSpec.describe Candle::GLiNER do
  let(:folder) { TinyModels.path("gliner") }
  let(:model) { described_class.from_pretrained(folder, device: "cpu") }
  let(:text) { "the quick brown fox jumps over the lazy dog in paris, so what?" }

  %w[gliner gliner-token gliner-marker gliner-spans gliner-bi].each do |name|
    it "finds what the library gliner finds with #{name}, one text at a time and all together" do
      path = TinyModels.path(name)
      model = described_class.from_pretrained(path, device: "cpu")
      cases = JSON.parse(File.read(File.join(path, "entities.json")), symbolize_names: true)
      expect(cases.sum { |entry| entry[:entities].sum(&:size) }).to be > 10
      cases.each do |entry|
        options = entry.slice(:labels, :threshold, :flat, :multi_label)
        together = model.extract(entry[:texts], **options)
        expect(entry[:texts].map { |text| model.extract(text, **options) }).to eq(together)
        together.flatten.zip(entry[:entities].flatten) do |found, wanted|
          expect(found.except(:score)).to eq(wanted.except(:score))
          expect(found[:score]).to be_within(1e-5).of(wanted[:score])
        end
        expect(together.map(&:size)).to eq(entry[:entities].map(&:size))
      end
    end
  end

  it "gives character offsets, each entity once, in the order of the text" do
    text = "Café naïve 東京 in Paris"
    found = model.extract(text, labels: %w[animal city], threshold: 0)
    expect(found).not_to be_empty
    found.each { |entity| expect(text[entity[:start]...entity[:end]]).to eq(entity[:text]) }
    expect(found.map { |entity| entity[:start] }).to eq(found.map { |entity| entity[:start] }.sort)
    expect(found.first.keys).to eq(%i[text label score start end])
  end

  it "leaves no overlap, unless entities may lie inside others" do
    flat = model.extract(text, labels: %w[animal city], threshold: 0.1)
    flat.each_cons(2) { |one, other| expect(other[:start]).to be >= one[:end] }
    nested = model.extract(text, labels: %w[animal city], threshold: 0.1, flat: false)
    expect(nested.size).to be > flat.size
  end

  it "reads long texts in windows, and finds in them what stands there" do
    long = ([text] * 40).join(" ")
    found = model.extract(long, labels: %w[animal city], threshold: 0.4)
    expect(found.last[:start]).to be > long.size / 2
    found.each { |entity| expect(long[entity[:start]...entity[:end]]).to eq(entity[:text]) }
    found.each_cons(2) { |one, other| expect(other[:start]).to be >= one[:end] }
  end

  it "replaces entities as whole words" do
    labels = ["city"]
    found = model.extract(text, labels: labels, threshold: 0.4)
    redacted = model.redact(text, labels: labels, threshold: 0.4)
    expect(found).not_to be_empty
    expect(redacted).to include("[city]")
    found.each { |entity| expect(redacted).not_to include(entity[:text]) if entity[:text].size > 5 }
    expect(model.redact([text], labels: labels, threshold: 1, with: ->(entity) { entity[:text].upcase })).to eq([text])
  end

  it "is a model of HybridNER" do
    hybrid = Candle::HybridNER.new(model, labels: %w[city animal]).add_pattern_recognizer("CODE", [/[A-Z]{2}\d+/])
    found = hybrid.extract_entities("AB12 #{text}", confidence_threshold: 0.4)
    expect(found.map { |entity| entity[:label] }).to include("CODE").and include("city").or include("animal")
    expect(hybrid.entity_types).to eq(%w[CODE animal city])
    expect(hybrid.redact("AB12 #{text}", labels: ["CODE"])).to start_with("[CODE] the")
    expect { Candle::HybridNER.new(model) }.to raise_error(ArgumentError, /labels/)
    expect { Candle::HybridNER.new(TinyModels.path("bert-token"), labels: ["city"]) }
      .to raise_error(Candle::ModelNotFoundError, /gliner_config/)
  end

  it "refuses no labels, odd ones and odd thresholds" do
    expect { model.extract(text, labels: []) }.to raise_error(Candle::InvalidInputError, /empty/)
    expect { model.extract(text, labels: [1]) }.to raise_error(ArgumentError, /labels/)
    expect { model.extract(text, labels: { a: 1 }) }.to raise_error(ArgumentError, /labels/)
    expect { model.extract(text, labels: ["city"], threshold: 2) }.to raise_error(ArgumentError, /threshold/)
    expect { model.extract(text, labels: Array.new(60) { |n| "city #{n}" }) }
      .to raise_error(Candle::InvalidInputError, /fewer labels/)
    expect(model.extract([], labels: ["city"])).to eq([])
    expect(model.extract(" \n", labels: ["city"])).to eq([])
  end

  it "says what it reads, and is told by its files" do
    expect([model.max_words, model.max_width, model.max_length]).to eq([24, 3, 120])
    expect(model.model_info[:architecture]).to eq("GLiNER")
    expect(Candle::ModelKind.of(folder)).to eq(:gliner)
    expect(Candle.pipeline("zero-shot-ner", folder).call("the dog", labels: ["city"], threshold: 0).first.keys)
      .to eq(%i[entity_group word score start end])
  end

  describe "#relations" do
    let(:gliner) { described_class.from_pretrained(TinyModels.path("gliner"), device: "cpu") }

    it "finds what the library gliner finds, but for targets in the prompt" do
      cases = JSON.parse(File.read(File.join(TinyModels.path("gliner"), "relations.json")), symbolize_names: true)
      cases.each do |one|
        options = one.slice(:relations, :entities, :threshold, :entity_threshold).merge(prompt: "what is: ")
        found = gliner.relations(one[:lists].map { |list| list[:text] }, **options)
        found.zip(one[:lists]).each do |rows, list|
          wanted = list[:found].reject { |row| row[:start].negative? }
          expect(rows.map { |row| row.except(:score) }).to match_array(wanted.map { |row| row.except(:score) })
          scores = rows.to_h { |row| [row.except(:score), row[:score]] }
          wanted.each { |row| expect(row[:score]).to be_within(1e-4).of(scores.fetch(row.except(:score))) }
        end
      end
      expect(cases.sum { |one| one[:lists].sum { |list| list[:found].size } }).to be > 10
    end

    it "gives offsets of targets, one list for one text, and none without entities" do
      text = "a happy dog and a happy fox is in the capital of france"
      found = gliner.relations(text, relations: "likes", entities: %w[animal], prompt: "what is: ", threshold: 0.4)
      expect(found).to all(satisfy { |row| text[row[:start]...row[:end]].strip == row[:target] })
      expect(gliner.relations([text], relations: "likes", entity_threshold: 1.0)).to eq([[]])
      expect { gliner.relations(text, relations: []) }.to raise_error(Candle::InvalidInputError)
    end
  end
end
