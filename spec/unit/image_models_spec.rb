# frozen_string_literal: true

RSpec.describe Candle::ImageEmbeddingModel do
  let(:images) { TinyModels.pictures }

  %w[vit dinov2 dinov2-registers].each do |name|
    it "embeds images as transformers does with #{name}" do
      model = described_class.from_pretrained(TinyModels.path(name), device: "cpu")
      expect(model.embed(images, normalize: false)).to be_near(TinyModels.rows(name, "first"), 1e-4)
      expect(model.embed(images.first).sum { |value| value * value }).to be_within(1e-5).of(1)
      expect(model.embed(images, as: :tensor).shape).to eq([4, model.dimension])
    end
  end

  it "says what it is" do
    model = described_class.from_pretrained(TinyModels.path("dinov2"), device: "cpu")
    expect(model.model_info).to include(family: "dinov2", dimensions: 32, max_length: nil)
    expect(model.tokenizer).to be_nil
    expect(model.warm_up).to be(model)
    expect { model.embed(nil) }.to raise_error(Candle::InvalidInputError, /image must be/)
    expect { described_class.from_pretrained(TinyModels.path("bert"), device: "cpu") }
      .to raise_error(Candle::UnsupportedModelError, /is not a vision model/)
  end
end

RSpec.describe Candle::ImageClassifier do
  let(:images) { TinyModels.pictures }

  %w[vit-classifier dinov2-classifier].each do |name|
    it "classifies images as transformers does with #{name}" do
      classifier = described_class.from_pretrained(TinyModels.path(name), device: "cpu")
      TinyModels.rows(name, "logits").zip(classifier.classify(images)) do |logits, found|
        sum = logits.sum { |logit| Math.exp(logit) }
        scores = classifier.labels.map { |label| found.find { |entry| entry[:label] == label }[:score] }
        expect(scores).to be_near(logits.map { |logit| Math.exp(logit) / sum }, 1e-4)
        expect(found).to eq(found.sort_by { |entry| -entry[:score] })
      end
    end
  end

  it "gives as many labels as are wanted", :gc_stress do
    classifier = described_class.from_pretrained(TinyModels.path("vit-classifier"), device: "cpu")
    expect(classifier.labels).to eq(%w[tabby temple flower])
    expect(classifier.classify(images.first, top_k: 1).size).to eq(1)
    expect(classifier.classify(images).map(&:size)).to eq([3] * 4)
    expect(classifier.warm_up).to be(classifier)
    expect(classifier.tokenizer).to be_nil
    expect { classifier.classify(images.first, top_k: 0) }.to raise_error(ArgumentError)
  end
end
