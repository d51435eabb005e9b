# frozen_string_literal: true

RSpec.describe Candle::SparseEmbeddingModel do
  let(:path) { TinyModels.path("splade") }
  let(:model) { described_class.from_pretrained(path, device: "cpu") }
  let(:router) { described_class.from_pretrained(TinyModels.path("sparse-router"), device: "cpu") }

  # A row of the reference without its zeros.
  def weights(row)
    row.each_with_index.to_h { |weight, id| [id, weight] }.reject { |_, weight| weight.zero? }
  end

  it "gives the weights that sentence-transformers gives", :gc_stress do
    texts = TinyModels.record("splade")["texts"]
    found = model.embed(texts)
    TinyModels.rows("splade", "default").zip(found).each do |row, hash|
      expect(hash.keys).to eq(weights(row).keys)
      expect(hash.values).to be_near(weights(row).values)
    end
    expect(model.embed(texts[2])).to eq(found[2])
    expect(model.embed([])).to eq([])
  end

  it "counts its calls, whichever way they go" do
    model.embed(["the lazy dog", "a"])
    expect(model.stats).to include(running: 0, waiting: 0, batches: 1, batch_size: hash_including(sum: 2.0))
    expect(model.stats[:tokens_in]).to eq(model.tokenizer.encode_batch(["the lazy dog", "a"]).sum(&:size))
    router.embed_query("the lazy dog")
    looked_up = router.stats[:tokens_in]
    router.embed_document("the lazy dog")
    expect(looked_up).to be_positive
    expect(router.stats).to include(batches: 2, tokens_in: be > looked_up)
  end

  it "gives them in three forms" do
    hash = model.embed("the lazy dog")
    expect(model.embed("the lazy dog", as: :arrays)).to eq(indices: hash.keys, values: hash.values)
    tokens = model.embed("the lazy dog", as: :tokens)
    expect(tokens.values).to eq(hash.values.sort.reverse)
    expect(tokens.keys).to match_array(hash.keys.map { |id| model.tokenizer.id_to_token(id) })
    expect(model.embed(["a"], as: "tokens").first).to be_a(Hash)
    expect { model.embed("a", as: :csv) }.to raise_error(ArgumentError, /as must be one of :hash, :tokens, :arrays/)
  end

  it "keeps the largest weights when asked" do
    all = model.embed("the lazy dog")
    few = model.embed("the lazy dog", top_k: 3)
    expect(few).to eq(all.select { |_, weight| all.values.max(3).include?(weight) })
    expect(model.embed("the lazy dog", top_k: 10_000)).to eq(all)
    expect { model.embed("a", top_k: 0) }.to raise_error(ArgumentError, /top_k must be a positive Integer/)
    expect(router.embed("the lazy dog and the fox").size).to be <= router.model_info[:top_k]
  end

  it "looks queries up and runs documents, as a router says" do
    { "query" => :embed_query, "document" => :embed_document }.each do |key, method|
      found = router.public_send(method, TinyModels.record("sparse-router")["texts"])
      TinyModels.rows("sparse-router", key).zip(found).each do |row, hash|
        expect(hash.keys).to eq(weights(row).keys)
        expect(hash.values).to be_near(weights(row).values)
      end
    end
    expect(router.embed("fox", task: "query", prompt: "")).not_to eq(router.embed("fox", prompt: ""))
    expect do
      router.embed("fox", task: :passage)
    end.to raise_error(ArgumentError, /task must be one of :query, :document/)
    expect(router.model_info).to include(routes: %w[query document], top_k: 12, similarity: "dot")
  end

  it "takes prompts by text and by name" do
    expect(model.embed("dog", prompt_name: :query)).to eq(model.embed("what is the dog", prompt: ""))
    expect(model.prompts).to eq("query" => "what is the ", "document" => "hello: ")
    expect { model.embed("dog", prompt_name: "none") }.to raise_error(Candle::InvalidInputError, /"document", "query"/)
  end

  it "compares texts and weights in every form" do
    one = model.embed_query("the lazy dog")
    other = model.embed_document("a quick fox")
    wanted = one.sum { |id, weight| weight * other.fetch(id, 0) }
    expect(model.similarity("the lazy dog", "a quick fox")).to be_near(wanted)
    forms = %i[hash tokens arrays].map { |form| model.embed_document("a quick fox", as: form) }
    forms.each { |form| expect(model.similarity(one, form)).to be_near(wanted) }
    expect(model.similarity(one, {})).to eq(0.0)
  end

  it "finds the best texts" do
    texts = ["hello world", "the lazy dog", "the dog and the fox"]
    found = model.search("the lazy dog", texts, top_k: 2)
    scores = texts.map { |text| model.similarity("the lazy dog", text) }
    expect(found.map { |hit| hit[:score] }).to be_near(scores.max(2))
    expect(found.map { |hit| hit[:text] }).to eq(found.map { |hit| texts[hit[:index]] })
    kept = model.search("the lazy dog", model.embed_document(texts), top_k: nil)
    expect(kept.map { |hit| hit.values_at(:index, :text) }).to eq(
      model.search("the lazy dog", texts, top_k: nil).map { |hit| [hit[:index], nil] }
    )
    expect(model.search("dog", [])).to eq([])
  end

  it "refuses what are neither texts nor weights" do
    expect { model.embed(["a", nil]) }.to raise_error(Candle::InvalidInputError, /texts\[1\].*nil/)
    expect { model.similarity("a", 7) }.to raise_error(Candle::InvalidInputError, /second vector must be a String/)
    expect { model.similarity("a", { "no such token" => 1.0 }) }
      .to raise_error(Candle::InvalidInputError, /"no such token", which is not a token/)
    expect { model.search("a", [{ -1 => 1.0 }]) }.to raise_error(Candle::InvalidInputError, /candidates\[0\] must have/)
    expect { model.search("a", [{ indices: [1, 1], values: [1.0, 2.0] }]) }
      .to raise_error(Candle::InvalidInputError, /two weights for the token 1/)
    expect { model.search("a", [{ 1 => Float::NAN }]) }.to raise_error(Candle::InvalidInputError, /finite/)
    expect { model.search("a", { 1 => 1.0 }) }.to raise_error(Candle::InvalidInputError, /candidates must be an Array/)
    expect do
      model.embed("dog " * 50, truncate: false)
    end.to raise_error(Candle::InvalidInputError, /index 0 has \d+ tokens/)
  end

  it "says what was loaded, and closes" do
    expect(model.dimension).to eq(143)
    expect(model.max_length).to eq(16)
    expect(model.device_report[:kernels].keys).to include("linear", "attention")
    expect(model.inspect).to match(/\A#<Candle::SparseEmbeddingModel .*splade bert f32 on cpu>\z/)
    expect(model.warm_up).to equal(model)
    model.close
    expect { model.embed("a") }.to raise_error(Candle::Error, /closed/)
    expect { described_class.from_pretrained(TinyModels.path("bert-sentence")) }
      .to raise_error(Candle::UnsupportedModelError, /SpladePooling/)
  end

  it "gives the same weights from any number of threads" do
    texts = ["the lazy dog", "a quick fox", "hello world"] * 20
    wanted = model.embed(texts)
    found = Array.new(4) { Thread.new { model.embed(texts) } }.map(&:value)
    expect(found).to all(eq(wanted))
  end
end
