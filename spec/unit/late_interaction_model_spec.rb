# frozen_string_literal: true

RSpec.describe Candle::LateInteractionModel do
  let(:model) { described_class.from_pretrained(TinyModels.path("colbert"), device: "cpu") }
  let(:documents) { ["hello world", "the lazy dog", "paris is the capital of france"] }

  # The rows of each text, which the fixture keeps one after the other.
  def split(rows, lengths)
    lengths.map { |length| rows.shift(length) }
  end

  %w[colbert colbert-attend colbert-plain colbert-stanford multi-vector].each do |name|
    it "gives #{name}'s vectors and scores as its own library does" do
      record = TinyModels.record(name)
      own = described_class.from_pretrained(TinyModels.path(name), device: "cpu")
      queries = own.embed_query(record["queries"])
      documents = own.embed_document(record["texts"])
      expect(queries.map(&:to_a)).to be_near(split(TinyModels.rows(name, "queries"), record["query_lengths"]))
      expect(documents.map(&:to_a)).to be_near(split(TinyModels.rows(name, "documents"), record["document_lengths"]))
      TinyModels.rows(name, "scores").zip(record["queries"]).each do |row, query|
        expect(own.score(query, record["texts"])).to be_near(row, 1e-3)
      end
    end
  end

  it "gives one tensor for a text and one each for several", :gc_stress do
    tensor = model.embed_query("the lazy dog")
    expect(tensor.shape).to eq([model.query_length, model.dimension])
    expect(model.embed_query(["the lazy dog"]).first.to_a).to eq(tensor.to_a)
    expect(model.embed_document(documents).map { |found| found.shape.last }).to eq([16] * 3)
    expect(model.embed_document("the lazy dog, the dog").shape.first)
      .to eq(model.embed_document("the lazy dog the dog").shape.first)
    expect(tensor.to_a.map { |row| row.sum { |value| value * value } }).to be_near([1.0] * 12)
    expect(model.embed_document([])).to eq([])
  end

  it "scores texts, and vectors that were made earlier" do
    scores = model.score("what is the capital?", documents)
    expect(model.score(model.embed_query("what is the capital?"), model.embed_document(documents))).to eq(scores)
    mixed = [documents[0], model.embed_document(documents[1]), documents[2]]
    expect(model.score("what is the capital?", mixed)).to eq(scores)
    expect(model.score("what is the capital?", documents * 100)).to eq(scores * 100)
    expect(model.score("a", [])).to eq([])
  end

  it "sorts documents, best first" do
    scores = model.score("what is the capital?", documents)
    order = scores.each_index.sort_by { |index| -scores[index] }
    found = model.rerank("what is the capital?", documents)
    expect(found.map { |hit| hit[:doc_id] }).to eq(order)
    expect(found.map { |hit| hit.values_at(:score, :text) }).to eq(order.map do |index|
                                                                     [scores[index], documents[index]]
                                                                   end)
    expect(model.rerank("what is the capital?", documents, top_k: 1)).to eq(found.first(1))
    expect(model.rerank("a", model.embed_document(documents)).first[:text]).to be_nil
    expect { model.rerank("a", documents, top_k: 0) }.to raise_error(ArgumentError, /top_k/)
  end

  it "takes other lengths, and prompts" do
    short = described_class.from_pretrained(TinyModels.path("colbert"), device: "cpu", query_length: 6,
                                                                        document_length: 5)
    expect([short.query_length, short.document_length]).to eq([6, 5])
    expect(short.embed_query("a").shape).to eq([6, 16])
    expect(model.embed_query("dog", prompt: "the ").to_a).to eq(model.embed_query("the dog").to_a)
    expect(model.prompts).to eq("query" => "", "document" => "")
    expect { described_class.from_pretrained(TinyModels.path("colbert"), query_length: 3) }
      .to raise_error(Candle::InvalidInputError, /at least 4/)
    expect { described_class.from_pretrained(TinyModels.path("colbert"), query_length: "x") }
      .to raise_error(ArgumentError, /query_length/)
  end

  it "refuses what are neither texts nor vectors" do
    expect { model.score("a", ["b", nil]) }.to raise_error(Candle::InvalidInputError, /documents\[1\].*nil/)
    expect { model.score(nil, documents) }.to raise_error(Candle::InvalidInputError, /query must be a String/)
    expect { model.score("a", "b") }.to raise_error(Candle::InvalidInputError, /documents must be an Array/)
    expect { model.score(Candle::Tensor.new([1.0]), documents) }
      .to raise_error(Candle::InvalidInputError, /the query must be a Tensor of shape \[tokens, dimension\]/)
    expect { model.score("a", [Candle::Tensor.new([[1.0, 2.0]])]) }
      .to raise_error(Candle::InvalidInputError, /16 components and those of the document at index 0 2/)
    expect { model.embed_query("a", prompt_name: "none") }.to raise_error(Candle::InvalidInputError, /"query"/)
  end

  it "says what was loaded, and closes" do
    expect(model.model_info).to include(architecture: "BertModel", query_expansion: true, query_length: 12,
                                        document_length: 20, dimensions: 16)
    expect(model.device_report[:kernels].keys).to include("l2_normalize", "linear", "attention")
    expect(model.inspect).to match(/\A#<Candle::LateInteractionModel .*colbert bert f32 on cpu>\z/)
    expect(model.warm_up).to equal(model)
    model.close
    expect { model.embed_query("a") }.to raise_error(Candle::Error, /closed/)
    expect { described_class.from_pretrained(TinyModels.path("bert")) }
      .to raise_error(Candle::UnsupportedModelError, /late-interaction/)
  end

  it "compares queries with images" do
    folder = TinyModels.path("colqwen2")
    model = described_class.from_pretrained(folder, device: "cpu")
    TinyModels.record("colqwen2").fetch("cases").each do |entry|
      picture = entry["picture"] && File.expand_path("../fixtures/images/#{entry["picture"]}", __dir__)
      found = picture ? model.embed_image(picture) : model.embed_query(entry.fetch("query"))
      expect(found.to_a).to be_near(entry.fetch("vectors").each_slice(8).to_a, 1e-4)
    end
    pages = model.embed_image(TinyModels.pictures.first(2))
    expect(model.rerank("a temple", pages).map { |hit| hit[:doc_id] }.sort).to eq([0, 1])
    expect(Candle::ModelKind.of(folder)).to eq(:late_interaction)
    expect(model.warm_up).to be(model)
    expect { model.embed_document("a") }.to raise_error(Candle::InvalidInputError, /embed_image/)
    plain = described_class.from_pretrained(TinyModels.path("colbert"), device: "cpu")
    expect { plain.embed_image(TinyModels.pictures.first) }.to raise_error(Candle::InvalidInputError, /texts only/)
  end
end
