# frozen_string_literal: true

require "fileutils"
require "tmpdir"

RSpec.describe Candle::Classifier do
  let(:path) { TinyModels.path("bert-sequence") }
  let(:classifier) { described_class.from_pretrained(path, device: "cpu") }

  # The same checkpoint with another config.json.
  def changed(**settings)
    Dir.mktmpdir do |directory|
      FileUtils.cp_r(File.join(path, "."), directory)
      config = TinyModels.record("bert-sequence", "config.json").merge(settings.transform_keys(&:to_s))
      File.write(File.join(directory, "config.json"), JSON.generate(config))
      yield described_class.from_pretrained(directory, device: "cpu")
    end
  end

  def logits(text, pair)
    probabilities = classifier.classify(text, pair: pair).to_h { |entry| [entry[:label], Math.log(entry[:score])] }
    probabilities.values_at("contradiction", "entailment")
  end

  it "gives labels best first", :gc_stress do
    found = classifier.classify("hello world")
    expect(found.map(&:keys)).to all(eq(%i[label score]))
    expect(found.map { |entry| entry[:label] }).to match_array(%w[contradiction neutral entailment])
    expect(found.map { |entry| entry[:score] }).to eq(found.map { |entry| entry[:score] }.sort.reverse)
    expect(found.sum { |entry| entry[:score] }).to be_within(1e-5).of(1)
    expect(classifier.classify("hello world", top_k: 1)).to eq(found.first(1))
  end

  it "judges labels that it was not trained on by BART too" do
    bart = described_class.from_pretrained(TinyModels.path("bart-sequence"), device: "cpu")
    found = bart.zero_shot("the lazy dog", %w[animal city])
    expect(found.map { |entry| entry[:label] }).to match_array(%w[animal city])
    expect(found.sum { |entry| entry[:score] }).to be_within(1e-5).of(1)
    pairs = %w[animal city].map { |label| bart.classify("the lazy dog", pair: "This example is #{label}.") }
    entailed = pairs.map { |list| list.find { |entry| entry[:label] == "entailment" }[:score] }
    expect(entailed).to all(be_between(0, 1))
    single = bart.zero_shot("the lazy dog", ["animal"]).first[:score]
    scores = pairs.first.to_h { |entry| [entry[:label], entry[:score]] }
    expect(single).to be_within(1e-4).of(scores["entailment"] / (scores["entailment"] + scores["contradiction"]))
  end

  it "takes Arrays of texts and of pairs" do
    expect(classifier.classify(%w[fox dog]).size).to eq(2)
    expect(classifier.classify([])).to eq([])
    both = classifier.classify(%w[fox dog], pair: %w[cat bird])
    expect(both.last.map { |e| e[:score] }).to be_near(classifier.classify("dog", pair: "bird").map do |e|
                                                         e[:score]
                                                       end, 1e-5)
    one = classifier.classify(%w[fox dog], pair: "cat").first
    expect(one.map { |e| e[:score] }).to be_near(classifier.classify("fox", pair: "cat").map { |e| e[:score] }, 1e-5)
  end

  it "uses a sigmoid for each label of a multi-label model" do
    changed(problem_type: "multi_label_classification") do |model|
      expected = TinyModels.rows("bert-sequence", "logits")[3].map { |logit| 1 / (1 + Math.exp(-logit)) }
      expect(model.multi_label?).to be(true)
      scores = model.classify(TinyModels.record("bert-sequence")["texts"][3])
      expect(scores.map { |entry| entry[:score] }).to be_near(expected.sort.reverse)
    end
    expect(classifier.multi_label?).to be(false)
  end

  it "classifies by labels it never saw: a softmax over what follows from the text" do
    labels = %w[animal city weather]
    # A model that says its labels are independent gives the logits away.
    logits = changed(problem_type: "multi_label_classification") do |model|
      rows = model.classify(["the lazy dog"] * 3, pair: labels.map { |label| "This example is #{label}." })
      rows.map { |row| row.find { |entry| entry[:label] == "entailment" }[:score] }.map { |p| Math.log(p / (1 - p)) }
    end
    powers = logits.map { |logit| Math.exp(logit) }
    expected = labels.zip(powers.map { |power| power / powers.sum }).sort_by { |_, score| -score }
    found = classifier.zero_shot("the lazy dog", labels)
    expect(found.map { |entry| entry[:label] }).to eq(expected.map(&:first))
    expect(found.map { |entry| entry[:score] }).to be_near(expected.map(&:last), 1e-5)
  end

  it "judges each label for itself when several may be true" do
    labels = %w[animal city]
    found = classifier.zero_shot("the lazy dog", labels, multi_label: true).to_h { |e| e.values_at(:label, :score) }
    labels.each do |label|
      against, follows = logits("the lazy dog", "This example is #{label}.")
      expect(found[label]).to be_within(1e-5).of(1 / (1 + Math.exp(against - follows)))
    end
    single = classifier.zero_shot("the lazy dog", ["animal"])
    expect(single.first[:score]).to be_within(1e-6).of(found["animal"])
  end

  it "takes a template, and Arrays of texts" do
    template = "the {} dog"
    found = classifier.zero_shot(["fox", "a lazy fox"], %w[quick lazy], hypothesis_template: template,
                                                                        multi_label: true)
    against, follows = logits("a lazy fox", "the lazy dog")
    score = found.last.find { |entry| entry[:label] == "lazy" }[:score]
    expect(score).to be_within(1e-5).of(1 / (1 + Math.exp(against - follows)))
  end

  it "keeps the hypothesis whole when the text is long" do
    long = "the dog and the fox " * 20
    one, other = ["hello world", "paris france"].map { |label| logits(long, "This example is #{label}.") }
    expect(one).not_to be_near(other, 1e-6)
  end

  it "refuses what it can't do" do
    expect { classifier.classify(nil) }.to raise_error(Candle::InvalidInputError, /nil/)
    expect { classifier.classify(%w[a b], pair: %w[c]) }.to raise_error(Candle::InvalidInputError, /2 texts.*not 1/)
    expect { classifier.classify("a", top_k: 0) }.to raise_error(ArgumentError, /top_k/)
    expect { classifier.zero_shot("a", []) }.to raise_error(Candle::InvalidInputError, /labels must not be empty/)
    expect { classifier.zero_shot("a", ["b"], hypothesis_template: "none") }
      .to raise_error(Candle::InvalidInputError, /\{\}/)
    changed(id2label: { "0" => "a", "1" => "b", "2" => "c" }) do |model|
      expect { model.zero_shot("a", ["b"]) }.to raise_error(Candle::UnsupportedModelError, /a, b, c.*inference/)
    end
  end
end
