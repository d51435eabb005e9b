# frozen_string_literal: true

# What a checkpoint has beside the body, which `model_selftest` runs in every type: heads, adapters, image towers, terms
# and token vectors, on the software device in types of 16 bits against the CPU's f32; run by `rake metal:specs`.
RSpec.describe "A model of 16 bits on a Metal device" do
  limits = { f16: 3e-2, bf16: 2e-1 }
  texts = ["a", "the lazy dog", "paris is the capital of france"]
  tiny = ->(pattern) { Dir.children(TinyModels::ROOT).grep(pattern).sort }

  let(:pictures) { TinyModels.pictures }

  # How far numbers are from others, by the size of those.
  def deviation(found, expected)
    size = ->(numbers) { Math.sqrt(numbers.sum { |number| number * number }) }
    size.call(found.zip(expected).map { |a, b| a - b }) / size.call(expected)
  end

  # A block takes a model and gives its numbers, nested or not.
  define_method(:expect_halves_near) do |klass, name, **options, &numbers|
    load = ->(device, dtype) { klass.from_pretrained(TinyModels.path(name), device:, dtype:, **options) }
    expected = numbers.call(load.call("cpu", :f32)).flatten
    limits.each do |dtype, limit|
      found = numbers.call(load.call("metal", dtype)).flatten
      expect(found.size).to eq(expected.size)
      expect(deviation(found, expected)).to be_between(0, limit), "#{name} in #{dtype}"
    end
  end

  it "classifies" do
    tiny.call(/-sequence\z/).each do |name|
      expect_halves_near(Candle::Classifier, name) do |model|
        model.classify(texts).map { |list| list.sort_by { |entry| entry[:label] }.map { |entry| entry[:score] } }
      end
    end
  end

  it "reranks" do
    tiny.call(/-reranker\z/).each do |name|
      expect_halves_near(Candle::Reranker, name) { |model| model.score("what is it?", texts) }
    end
  end

  it "tags tokens" do
    tiny.call(/(?<!gliner)-token\z/).each do |name|
      expect_halves_near(Candle::NER, name) do |model|
        texts.flat_map { |text| model.predict_tokens(text).map { |token| token["probabilities"].values } }
      end
    end
  end

  it "knows labels in plain words" do
    scores = ->(found) { found.sort_by { |entry| entry[:label] }.map { |entry| entry[:score] } }
    labels = ["animal", "city", "happy dog"]
    tiny.call(/\Agliner/).each do |name|
      expect_halves_near(Candle::GLiNER, name) do |model|
        scores.call(model.extract("dog", labels:, threshold: 0.0, multi_label: true))
      end
    end
    tiny.call(/\Agliclass/).each do |name|
      expect_halves_near(Candle::GLiClass, name) { |model| model.classify(texts, labels:).map(&scores) }
    end
  end

  it "fills gaps" do
    tiny.call(/-masked\z/).each do |name|
      expect_halves_near(Candle::MaskedLM, name) do |model|
        found = model.fill("the #{model.mask_token} dog", top_k: 1_000_000)
        found.sort_by { |entry| entry[:id] }.map { |entry| entry[:score] }
      end
    end
  end

  it "takes adapters" do
    (Dir.children(TinyModels.path("adapters")) - %w[llama-dora]).sort.each do |name|
      record = TinyModels.record("adapters/#{name}")
      adapters = { it: TinyModels.path("adapters/#{name}") }
      expect_halves_near(Candle::LLM, "decoders/#{record["base"]}", adapters:) do |llm|
        llm.__send__(:_logprobs, record["sequences"].last, "it")
      end
    end
  end

  it "sees" do
    %w[clip siglip siglip2].each do |name|
      expect_halves_near(Candle::CLIP, name) { |model| model.embed_image(pictures) + model.embed_text(texts) }
    end
    tiny.call(/\A(vit|dinov2(-registers)?)\z/).each do |name|
      expect_halves_near(Candle::ImageEmbeddingModel, name) { |model| model.embed(pictures) }
    end
    tiny.call(/\A(vit|dinov2)-classifier\z/).each do |name|
      expect_halves_near(Candle::ImageClassifier, name) do |model|
        model.classify(pictures).map { |list| list.sort_by { |entry| entry[:label] }.map { |entry| entry[:score] } }
      end
    end
  end

  it "weighs terms" do
    tiny.call(/\Asplade|sparse-static/).each do |name|
      expect_halves_near(Candle::SparseEmbeddingModel, name) do |model|
        model.embed(texts).map { |row| (0...model.dimension).map { |term| row.fetch(term, 0.0) } }
      end
    end
    # It keeps the heaviest terms, of which the last and the first that is left out weigh all but the same.
    expect_halves_near(Candle::SparseEmbeddingModel, "sparse-router") do |model|
      model.embed(texts).map { |row| row.values.sort }
    end
  end

  it "compares token by token" do
    tiny.call(/\Acolbert/).each do |name|
      expect_halves_near(Candle::LateInteractionModel, name) { |model| model.score("what is it?", texts) }
    end
  end

  it "embeds texts, with the layers that sentence-transformers adds, and by tables" do
    tiny.call(/-sentence|static-embedding|model2vec|-embedding\z/).each do |name|
      expect_halves_near(Candle::EmbeddingModel, name) { |model| model.embed(texts) }
    end
  end
end
