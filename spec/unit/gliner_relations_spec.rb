# frozen_string_literal: true

require "fileutils"
require "json"
require "tmpdir"

RSpec.describe Candle::GLiNER do
  root = File.join(SeededModels::FIXTURES, "seeded_extractors")

  define_method(:record) { |name, file| JSON.parse(File.read(File.join(root, name, file))) }

  # A whole checkpoint in a folder that the block may use; `config` changes what gliner_config.json says.
  define_method(:checkpoint) do |name, config = {}, broken: nil, &block|
    Dir.mktmpdir("seeded") do |folder|
      FileUtils.cp(%w[tokenizer.json tokenizer_config.json].map { |file| File.join(root, name, file) }, folder)
      config = record(name, "gliner_config.json").merge(config)
      File.write(File.join(folder, "gliner_config.json"), JSON.generate(config))
      tensors = record(name, "tensors.json")
      tensors["tensors"].fetch(broken)["center"] = Float::NAN if broken
      File.binwrite(File.join(folder, "model.safetensors"), SeededModels.safetensors(tensors))
      block.call(folder)
    end
  end

  define_method(:loaded) do |name, config = {}, &block|
    checkpoint(name, config) { |folder| block.call(described_class.from_pretrained(folder, device: "cpu")) }
  end

  options = %i[labels relations threshold relation_threshold adjacency_threshold flat multi_label]

  Dir.children(root).sort.each do |name|
    it "finds the entities and relations that the library gliner finds with #{name}" do
      loaded(name) do |model|
        record(name, "expected.json")["cases"].each do |entry|
          given = entry.transform_keys(&:to_sym).slice(*options)
          together = model.extract(entry["texts"], **given)
          expect(entry["texts"].map { |text| model.extract(text, **given) }).to eq(together)
          together.zip(entry["entities"], entry["related"]) do |found, entities, related|
            expect(found[:entities].map { |one| one.except(:score).transform_keys(&:to_s) })
              .to eq(entities.map { |one| one.except("score") })
            pairs = found[:relations].map do |one|
              places = one.values_at(:head, :tail).map { |entity| found[:entities].index(entity) }
              [one[:relation], *places]
            end
            expect(pairs).to eq(related.map { |one| one.values_at("relation", "head", "tail") })
            scores = [*found[:entities], *found[:relations]].map { |one| one[:score] }
            expect(scores).to be_near([*entities, *related].map { |one| one["score"] }, 1e-4)
          end
        end
      end
    end
  end

  it "gives offsets in characters, and finds entities without relations" do
    text = "Café naïve: who live in Paris - France? hello-world_so 東京 is it."
    loaded("relex-mlp") do |model|
      found = model.extract(text, labels: %w[animal city], relations: "likes", threshold: 0.3, relation_threshold: 0)
      expect(found.keys).to eq(%i[entities relations])
      expect(found[:relations]).not_to be_empty
      found[:relations].each do |one|
        expect(one.keys).to eq(%i[relation score head tail])
        one.values_at(:head, :tail).each { |span| expect(text[span[:start]...span[:end]]).to eq(span[:text]) }
      end
      expect(model.extract(text, labels: %w[animal city], threshold: 0.3)).to all(include(:label))
    end
  end

  it "finds the same relations by sources and targets" do
    text = "a happy dog and a happy fox is in the capital of france"
    loaded("relex-mlp") do |model|
      found = model.relations(text, relations: %w[likes], entities: %w[animal city], threshold: 0.2,
                                    entity_threshold: 0.3)
      wanted = model.extract(text, labels: %w[animal city], relations: %w[likes], threshold: 0.3,
                                   relation_threshold: 0.2)[:relations]
      expect(found).not_to be_empty
      expect(found.map { |one| one.values_at(:source, :target, :score) })
        .to match_array(wanted.map { |one| [one[:head][:text], one[:tail][:text], one[:score]] })
    end
  end

  it "reads long texts in windows" do
    text = (["a happy dog and a happy fox is in the capital of france"] * 12).join(" ")
    loaded("relex-mlp") do |model|
      found = model.extract(text, labels: %w[animal city], relations: %w[likes], threshold: 0.1, relation_threshold: 0,
                                  adjacency_threshold: 0)
      expect(found[:relations].map { |one| one[:head][:start] }.max).to be > text.size / 2
      expect(found[:relations].map { |one| one.except(:score) }.uniq.size).to eq(found[:relations].size)
    end
  end

  it "says that numbers of relations are not numbers" do
    { "relex" => "pair_rep_layer.3.bias", "relex-mlp" => "relations_rep_layer.relation_rep_layer.mlp.2.bias" }
      .each do |name, tensor|
        checkpoint(name, broken: tensor) do |folder|
          model = described_class.from_pretrained(folder, device: "cpu", verify: false)
          expect { model.extract("a happy dog", labels: ["city"], relations: ["likes"], threshold: 0) }
            .to raise_error(Candle::DeviceError, /aren't numbers/)
        end
      end
  end

  it "refuses relations without a head for them, beside a schema, and of odd kinds" do
    plain = described_class.from_pretrained(TinyModels.path("gliner"), device: "cpu")
    expect { plain.extract("a dog", labels: ["city"], relations: ["likes"]) }
      .to raise_error(Candle::UnsupportedModelError, /relex/)
    second = described_class.from_pretrained(TinyModels.path("gliner2"), device: "cpu")
    expect { second.extract("a dog", labels: ["city"], relations: ["likes"]) }
      .to raise_error(Candle::UnsupportedModelError, /schema/)
    expect { second.extract("a dog", schema: { entities: ["city"] }, relations: ["likes"]) }
      .to raise_error(ArgumentError, /relations/)
    expect { plain.extract("a dog", labels: ["city"], relations: []) }.to raise_error(Candle::InvalidInputError)
    expect { plain.extract("a dog", labels: ["city"], relations: ["likes"], relation_threshold: 2) }
      .to raise_error(ArgumentError, /relation_threshold/)
  end

  it "refuses layers that it does not know, and tensors that do not fit" do
    { { relations_layer: "cosine" } => /relations_layer "cosine"/,
      { triples_layer: "ConvE" } => /triples_layer "ConvE"/,
      { subtoken_pooling: "mean" } => /subtoken_pooling/ }.each do |config, message|
      checkpoint("relex", config) do |folder|
        expect { described_class.from_pretrained(folder) }.to raise_error(Candle::UnsupportedModelError, message)
      end
    end
    checkpoint("relex", { relations_layer: "mlp" }) do |folder|
      expect { described_class.from_pretrained(folder) }.to raise_error(Candle::CorruptModelError, /mlp/)
    end
  end
end
