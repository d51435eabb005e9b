# frozen_string_literal: true

require "fileutils"
require "json"
require "tmpdir"

RSpec.describe Candle::GLiNER do
  let(:folder) { TinyModels.path("gliner2") }
  let(:model) { described_class.from_pretrained(folder, device: "cpu") }
  let(:text) { "the quick brown fox jumps over the lazy dog in paris, so what?" }

  # A result as the library gliner2 writes it, with confidences and offsets.
  def as_library(result)
    plain = JSON.parse(JSON.generate(renamed(result)))
    relations = plain.delete("relations")
    flat = plain.slice("entities").merge(plain.fetch("structures", {}), plain.fetch("classifications", {}))
    relations ? flat.merge("relation_extraction" => relations) : flat
  end

  def renamed(value)
    case value
    when Array then value.map { |inner| renamed(inner) }
    when Hash
      inner = value.to_h { |key, one| [key == :score ? "confidence" : key.to_s, renamed(one)] }
      inner.key?("attributes") ? inner.except("attributes").merge(inner["attributes"]) : inner
    else value
    end
  end

  # The library has an empty Hash where nothing was found.
  def without_empty(value)
    case value
    when Hash
      kept = value.transform_values { |inner| without_empty(inner) }
      kept.reject { |_, inner| [nil, [], {}].include?(inner) }
    when Array then value.map { |inner| without_empty(inner) }
    else value
    end
  end

  # Numbers of both, and all else.
  def taken_apart(value, numbers)
    case value
    when Float then numbers.push(value) && :number
    when Hash then value.sort.map { |key, inner| [key, taken_apart(inner, numbers)] }
    when Array then value.map { |inner| taken_apart(inner, numbers) }
    else value
    end
  end

  def expect_near(found, wanted, place)
    numbers = [[], []]
    forms = [found, wanted].zip(numbers).map { |value, list| taken_apart(without_empty(value), list) }
    expect(forms.first).to eq(forms.last), "#{place}: #{forms.first.inspect} for #{forms.last.inspect}"
    numbers.first.zip(numbers.last) { |one, other| expect(one).to be_within(2e-5).of(other), place }
  end

  %w[gliner2 gliner2-transformer gliner2-experts].each do |name|
    it "finds what the library gliner2 finds with #{name}, one text at a time and all together" do
      path = TinyModels.path(name)
      model = described_class.from_pretrained(path, device: "cpu")
      JSON.parse(File.read(File.join(path, "schemas.json"))).each_with_index do |entry, number|
        options = entry.slice("threshold", "overlap", "window", "window_overlap").transform_keys(&:to_sym)
        together = model.extract(entry["texts"], schema: entry["schema"], **options)
        expect(entry["texts"].map { |text| model.extract(text, schema: entry["schema"], **options) }).to eq(together)
        together.zip(entry["results"]).each_with_index do |(found, wanted), index|
          expect_near(as_library(found), wanted, "case #{number}, text #{index}")
        end
      end
    end
  end

  it "compares with results that have entities, relations, instances, choices and attributes" do
    choices = []
    %w[gliner2 gliner2-transformer gliner2-experts].each do |name|
      all = JSON.parse(File.read(TinyModels.path("#{name}/schemas.json"))).flat_map { |entry| entry["results"] }
      entities = all.flat_map { |result| result.fetch("entities", {}).values.flatten.compact }
      expect(entities.size).to be > 20
      expect(entities.count { |entity| entity.key?("mood") }).to be > 2
      expect(all.sum { |result| result.fetch("relation_extraction", {}).values.flatten.size }).to be > 5
      expect(all.map { |result| result["sighting"] }.grep(Array).map(&:size).max).to be > 1
      choices += all.map { |result| result["sighting"] }.grep(Array).flatten
    end
    expect(choices.count { |instance| instance["mood"] }).to be > 2
    expect(choices.count { |instance| instance["colors"].any? }).to be > 2
  end

  it "takes short forms of schemas" do
    long = { structures: { trip: { fields: [{ name: "to", dtype: "str", description: "a place" }, { name: "by" },
                                            { name: "mood", dtype: "str", choices: %w[happy lazy] }] } },
             classifications: [{ task: "mood", labels: %w[happy lazy] }],
             relations: { likes: { description: "is fond of" } }, entities: { city: { description: "a place" } } }
    short = { structures: { trip: { to: { type: :string, description: "a place" }, by: :list, mood: %w[happy lazy] } },
              classifications: { mood: %i[happy lazy] }, relations: { likes: "is fond of" },
              entities: { city: "a place" } }
    written = { **short, structures: { trip: ["to::str::a place", "by", "mood::[happy|lazy]"] } }
    found = model.extract(text, schema: long, threshold: 0.3)
    expect(model.extract(text, schema: short, threshold: 0.3)).to eq(found)
    expect(model.extract(text, schema: written, threshold: 0.3)).to eq(found)
    expect(found.keys).to eq(%i[entities structures relations classifications])
  end

  it "keeps only values that match" do
    schema = { entities: { animal: { match: /\A[a-l]/ } } }
    all = model.extract(text, schema: { entities: ["animal"] }, threshold: 0.2, overlap: :allow)[:entities]["animal"]
    some = model.extract(text, schema: schema, threshold: 0.2, overlap: :allow)[:entities]["animal"]
    expect(some).to eq(all.select { |span| span[:text].match?(/\A[a-l]/) })
    expect(some.size).to be_between(1, all.size - 1)
  end

  it "extracts by labels, with offsets in the text and no overlap" do
    ["happy dog in paris", "Café naïve 東京 in Paris, so what?", text].each do |text|
      found = model.extract(text, labels: %w[animal city], threshold: 0.2)
      expect(found).not_to be_empty
      found.each { |entity| expect(text[entity[:start]...entity[:end]]).to eq(entity[:text]) }
      found.each_cons(2) { |one, other| expect(other[:start]).to be >= one[:end] }
      expect(found.first.keys).to eq(%i[text label score start end])
      nested = model.extract(text, labels: %w[animal city], threshold: 0.2, flat: false, multi_label: true)
      expect(nested.size).to be >= found.size
    end
    hybrid = Candle::HybridNER.new(model, labels: %w[city animal])
    found = hybrid.extract_entities(text, confidence_threshold: 0.3)
    expect(found.map { |one| one[:label] } - %w[city animal]).to eq([])
    expect(model.redact("hello world", labels: ["city"], threshold: 1)).to eq("hello world")
    expect(model.redact(text, labels: ["city"], threshold: 0.1)).to include("[city]")
  end

  it "classifies, and finds relations" do
    labels = { animals: "what lives", places: "where it is" }
    one = model.classify(text, labels: labels, task: "topic", multi_label: false)
    wanted = model.extract(text, schema: { classifications: { topic: labels } })[:classifications]["topic"]
    expect(one.first).to eq(wanted)
    expect(one.sum { |entry| entry[:score] }).to be_within(1e-6).of(1)
    both = model.classify([text, ""], labels: %w[animals places], top_k: 1)
    expect(both.map(&:size)).to eq([1, 1])
    found = model.relations(text, relations: ["lives in"], threshold: 0.3)
    wanted = model.extract(text, schema: { relations: ["lives in"] }, threshold: 0.3)[:relations]["lives in"]
    expect(found.map { |row| row[:source] }).to match_array(wanted.map { |pair| pair[:head][:text] })
    expect(found.map(&:keys).uniq - [%i[source relation target score start end]]).to eq([])
  end

  it "reads texts as a whole, and in windows where the model has no positions for them" do
    long = ([text] * 60).join(" ")
    whole = model.extract(long, schema: { entities: ["animal"] }, threshold: 0.3, overlap: :allow)
    expect(whole[:entities]["animal"].map { |span| span[:end] }.max).to be > long.size - 40
    limited = described_class.from_pretrained(TinyModels.path("gliner2-experts"), device: "cpu")
    expect(limited.max_length).to eq(512)
    schema = { entities: ["animal", "city", "happy dog"], classifications: { mood: %w[a b] } }
    found = limited.extract(long, schema: schema, threshold: 0.2)
    spans = found[:entities].values.flatten
    expect(spans).to all(satisfy { |span| long[span[:start]...span[:end]] == span[:text] })
    expect(spans.map { |span| span[:end] }.max).to be > long.size / 2
    expect { limited.extract(long, schema: { entities: ["a"] }, window: 600) }
      .to raise_error(Candle::InvalidInputError, /window/)
    expect { limited.extract(long, schema: { entities: Array.new(300) { |n| "city #{n}" } }) }
      .to raise_error(Candle::InvalidInputError, /ask for less/)
  end

  it "refuses odd schemas by what is odd" do
    { {} => /empty/, { entitys: ["a"] } => /unknown key :entitys/, { entities: [] } => /empty/,
      { entities: { a: 1 } } => /must be a Hash/, { entities: { a: { kind: 1 } } } => /unknown key :kind/,
      { entities: { a: { type: :number } } } => /:string or :list/, { entities: { a: { match: "x" } } } => /Regexp/,
      { entities: { a: { threshold: 2 } } } => /threshold/, { structures: { a: [] } } => /no fields/,
      { structures: { a: { fields: ["b"], mode: "natural" } } } => /mode/, { structures: { a: %w[b b] } } => /twice/,
      { classifications: { a: [] } } => /empty/, { classifications: { a: { labels: ["b"], top_k: 0 } } } => /top_k/,
      { classifications: [{ labels: ["b"] }] } => /task/,
      { classifications: { a: { labels: ["b"], examples: 1 } } } => /pairs/,
      { entity_attributes: { a: { labels: ["b"] } } } => /entities/,
      { entities: ["b"], entity_attributes: { a: { labels: ["b"] } } } => /qualify_labels/ }.each do |schema, message|
      error = begin
        model.extract(text, schema: schema)
      rescue ArgumentError, Candle::InvalidInputError => e
        e
      end
      expect(error).to be_a(Exception), schema.inspect
      expect(error.message).to match(message)
    end
    expect { model.extract(text, schema: 1) }.to raise_error(ArgumentError, /Hash/)
    expect { model.extract(text) }.to raise_error(ArgumentError, /labels/)
    expect { model.extract(text, labels: ["a"], schema: { entities: ["a"] }) }.to raise_error(ArgumentError, /not both/)
    expect { model.extract(text, schema: { entities: ["a"] }, overlap: :some) }.to raise_error(ArgumentError, /overlap/)
    expect { model.extract(text, schema: { entities: ["a"] }, window: 4, window_overlap: 4) }
      .to raise_error(ArgumentError, /window_overlap/)
    old = described_class.from_pretrained(TinyModels.path("gliner"), device: "cpu")
    expect { old.extract(text, schema: { entities: ["a"] }) }.to raise_error(Candle::UnsupportedModelError, /GLiNER2/)
    expect { old.classify(text, labels: ["a"]) }.to raise_error(Candle::UnsupportedModelError, /GLiNER2/)
  end

  it "names what of a checkpoint is unsupported or damaged" do
    Dir.mktmpdir do |copy|
      FileUtils.cp_r("#{folder}/.", copy)
      config = JSON.parse(File.read("#{folder}/config.json"))
      { { "architecture" => "boundary" } => [Candle::UnsupportedModelError, /boundary/],
        { "counting_layer" => "count_gru" } => [Candle::UnsupportedModelError, /count_gru/],
        { "counting_layer" => "count_lstm_v2" } => [Candle::Error, /count_embed/],
        { "max_width" => 0 } => [Candle::CorruptModelError, /max_width/] }.each do |change, (error, message)|
        File.write("#{copy}/config.json", JSON.generate(config.merge(change)))
        expect { described_class.from_pretrained(copy, device: "cpu") }.to raise_error(error, message)
      end
      FileUtils.cp("#{folder}/config.json", copy)
      FileUtils.cp(TinyModels.path("gliner/tokenizer.json"), copy)
      expect { described_class.from_pretrained(copy, device: "cpu") }.to raise_error(Candle::CorruptModelError, /\[P\]/)
      FileUtils.rm_r("#{copy}/encoder_config")
      expect { described_class.from_pretrained(copy, device: "cpu") }
        .to raise_error(Candle::ModelNotFoundError, /encoder_config/)
    end
  end

  it "is told by its files" do
    expect(Candle::ModelKind.of(folder)).to eq(:gliner)
    expect([model.max_words, model.max_width]).to eq([nil, 3])
    expect(model.model_info[:architecture]).to eq("GLiNER2")
  end
end
