# frozen_string_literal: true

require "json"

# Real weights against what sentence-transformers and transformers make of them (spec/fixtures/make_real_reference.py).
RSpec.describe "Real encoders" do
  reference = JSON.parse(File.read(File.expand_path("../fixtures/real_reference.json", __dir__), encoding: "UTF-8"))

  def cosine(one, other)
    length = ->(vector) { Math.sqrt(vector.sum { |value| value * value }) }
    one.zip(other).sum { |a, b| a * b } / (length.call(one) * length.call(other))
  end

  reference["embeddings"].each do |id, vectors|
    describe id do
      include_context "with the real model", id

      # Without sentence-transformers' files the reference does not normalize, and we do unless told.
      normalize = id == "moka-ai/m3e-small" ? false : nil

      it "embeds like sentence-transformers" do
        model = Candle::EmbeddingModel.from_pretrained(real_path, device: "cpu", normalize: normalize)
        expect(model.embed(reference["texts"])).to be_near(vectors)
        alone = reference["texts"].map { |text| model.embed(text) }
        expect(alone).to be_near(model.embed(reference["texts"]), 1e-5)
      end

      it "embeds in half precision within a cosine of 0.999" do
        model = Candle::EmbeddingModel.from_pretrained(real_path, device: "cpu", dtype: :f16)
        model.embed(reference["texts"].first(4)).zip(vectors) { |found, row| expect(cosine(found, row)).to be > 0.999 }
      end
    end
  end

  describe "litemem/all-MiniLM-L6-v2-GGUF" do
    include_context "with the real model", "litemem/all-MiniLM-L6-v2-GGUF"

    it "embeds like the unquantized model, from the directory as from the file" do
      full = reference["embeddings"]["sentence-transformers/all-MiniLM-L6-v2"]
      texts = reference["texts"].first(5)
      [real_path, Dir[File.join(real_path, "*.gguf")].first].each do |source|
        model = Candle::EmbeddingModel.from_pretrained(source, device: "cpu", normalize: true)
        expect(model.dimension).to eq(384)
        model.embed(texts).zip(full) { |found, row| expect(cosine(found, row)).to be > 0.99 }
      end
    end
  end

  describe reference["reranker"]["id"] do
    include_context "with the real model", reference["reranker"]["id"]

    let(:model) { Candle::Reranker.from_pretrained(real_path, device: "cpu") }
    let(:documents) { reference["reranker"]["documents"] }

    it "scores and ranks like a cross-encoder" do
      query, scores = reference["reranker"].values_at("query", "scores")
      expect(model.score(query, documents)).to be_near(scores, 1e-3)
      found = model.rerank(query, documents)
      expect(found.map { |hit| hit[:doc_id] }).to eq(scores.each_index.sort_by { |index| -scores[index] })
      expect(found.first).to include(doc_id: 0, text: documents.first)
      expect(found.first[:score]).to be > 0.999
    end
  end

  describe reference["ner"]["id"] do
    include_context "with the real model", reference["ner"]["id"]

    reference["ner"]["entities"].each do |strategy, expected|
      it "finds the entities of transformers' pipeline, aggregated by #{strategy}" do
        ner = Candle::NER.from_pretrained(real_path, device: "cpu")
        texts = reference["ner"]["texts"]
        found = ner.extract_entities(texts, confidence_threshold: 0, aggregation: strategy)
        found.zip(expected, texts) do |entities, wanted, text|
          places = entities.map { |entity| entity.values_at(:label, :start, :end).map(&:to_s) }
          expect(places).to eq(wanted.map { |entity| entity.values_at("label", "start", "end").map(&:to_s) })
          expect(entities.map { |e| e[:confidence] }).to be_near(wanted.map { |e| e["score"] }, 1e-3)
          entities.each { |entity| expect(text[entity[:start]...entity[:end]]).to eq(entity[:text]) }
        end
      end
    end

    it "finds each entity of a long text once" do
      ner = Candle::NER.from_pretrained(real_path, device: "cpu")
      text = "Angela Merkel was born in Hamburg. " * 200
      found = ner.extract_entities(text, confidence_threshold: 0, aggregation: :max)
      found.each { |entity| expect(text[entity[:start]...entity[:end]]).to eq(entity[:text]) }
      expect(found.flat_map { |entity| entity[:text].split }.tally).to include("Angela" => 200, "Merkel" => 200,
                                                                               "Hamburg" => 200)
    end
  end
end
