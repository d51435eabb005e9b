# frozen_string_literal: true

RSpec.describe Candle::Reranker do
  let(:path) { TinyModels.path("bert-reranker") }
  let(:reranker) { described_class.from_pretrained(path, device: "cpu") }
  let(:query) { "what is the capital?" }
  let(:documents) { ["the lazy dog", "paris is the capital of france", "", "hello world"] }

  it "has the published default, and the form of new without a warning" do
    expect(described_class::DEFAULT_MODEL_PATH).to eq("cross-encoder/ms-marco-MiniLM-L-12-v2")
    built = nil
    expect { built = described_class.new(model_path: path, device: Candle::Device.cpu) }.not_to output.to_stderr
    expect(built.score(query, documents)).to eq(reranker.score(query, documents))
  end

  it "says what was loaded" do
    expect(reranker.max_length).to eq(40)
    expect(reranker.model_info).to include(architecture: "BertForSequenceClassification", family: "bert")
    expect(reranker.inspect).to match(/\A#<Candle::Reranker .* on cpu>\z/)
    expect(described_class.from_pretrained(path, device: "cpu", max_length: 12).max_length).to eq(12)
  end

  it "sorts the documents, best first", :gc_stress do
    scores = reranker.score(query, documents)
    found = reranker.rerank(query, documents, apply_sigmoid: false)
    order = scores.each_index.sort_by { |index| -scores[index] }
    expect(found.map { |hit| hit[:doc_id] }).to eq(order)
    expect(found.map { |hit| hit[:text] }).to eq(documents.values_at(*order))
    expect(found.map { |hit| hit[:score] }).to be_near(scores.values_at(*order), 1e-6)
    expect(found.first.keys).to eq(%i[doc_id score text index])
    expect(found.map { |hit| hit[:index] }).to eq(order)
  end

  it "applies a sigmoid unless told not to" do
    raw = reranker.rerank(query, documents, apply_sigmoid: false)
    found = reranker.rerank(query, documents)
    expect(found.map { |hit| hit[:score] }).to be_near(raw.map { |hit| 1 / (1 + Math.exp(-hit[:score])) }, 1e-6)
    expect(found).to eq(reranker.rerank_sigmoid_with_pooling(query, documents, "pooler"))
    expect(raw).to eq(reranker.rerank_with_pooling(query, documents, "pooler"))
  end

  it "keeps only the best when asked" do
    expect(reranker.rerank(query, documents, top_k: 2)).to eq(reranker.rerank(query, documents).first(2))
    expect(reranker.rerank(query, documents, top_k: 99).size).to eq(4)
    expect(reranker.rerank(query, [])).to eq([])
    expect(reranker.score(query, [])).to eq([])
  end

  it "scores a document alike whatever stands beside it" do
    many = documents * 200
    scores = reranker.score(query, many, batch_tokens: 128)
    single = documents.map { |document| reranker.score(query, [document]).first }
    expect(scores).to be_near(single * 200, 1e-5)
  end

  it "cuts the document alone" do
    long = "the lazy dog " * 30
    tokens = reranker.debug_tokenization(query, long)
    expect(tokens.keys).to eq(%w[token_ids token_type_ids attention_mask tokens])
    expect(tokens["token_ids"].size).to eq(40)
    expect(tokens["attention_mask"]).to eq([1] * 40)
    own = reranker.tokenizer.encode_to_tokens(query)
    expect(tokens["tokens"].first(own.size)).to eq(own)
    expect(tokens["token_type_ids"].tally).to eq(0 => own.size, 1 => 40 - own.size)
    expect(reranker.score(query, [long])).to eq(reranker.score(query, ["#{long} and more"]))
  end

  it "refuses what isn't a text, naming its place" do
    expect do
      reranker.rerank(nil, documents)
    end.to raise_error(Candle::InvalidInputError, /query must be a String, not nil/)
    expect { reranker.rerank(query, ["a", nil]) }.to raise_error(Candle::InvalidInputError, /documents\[1\].*nil/)
    expect { reranker.rerank(query, "a") }.to raise_error(Candle::InvalidInputError, /documents must be an Array/)
    expect { reranker.rerank(query, ["\xff"]) }.to raise_error(Candle::InvalidInputError, /documents\[0\].*UTF-8/)
  end

  it "refuses unknown options" do
    expect { reranker.rerank(query, documents, pooling_method: "median") }
      .to raise_error(Candle::InvalidInputError, /median.*"pooler", "cls" or "mean"/)
    expect { reranker.rerank(query, documents, top_k: 0) }.to raise_error(ArgumentError, /top_k/)
    expect do
      reranker.rerank(query, documents, batch_tokens: -1)
    end.to raise_error(ArgumentError, /batch_tokens/)
    expect { described_class.from_pretrained(TinyModels.path("bert-sequence"), device: "cpu") }
      .to raise_error(Candle::UnsupportedModelError, /3 scores.*Classifier/)
  end
end
