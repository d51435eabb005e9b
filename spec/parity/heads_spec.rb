# frozen_string_literal: true

# Logits, entities and fillings as transformers computes them.
RSpec.describe "Heads" do
  def softmax(row)
    powers = row.map { |logit| Math.exp(logit - row.max) }
    powers.map { |power| power / powers.sum }
  end

  families = %w[bert roberta distilbert mpnet electra albert deberta deberta-v2 nomic-bert gte modernbert]

  describe Candle::Classifier do
    (families + %w[xlm-roberta mistral bart]).each do |family|
      it "classifies texts and pairs with #{family}" do
        name = "#{family}-sequence"
        model = described_class.from_pretrained(TinyModels.path(name), device: "cpu")
        record = TinyModels.record(name)
        by_label = lambda { |lists|
          lists.map do |list|
            model.labels.map do |label|
              list.find do |e|
                e[:label] == label
              end[:score]
            end
          end
        }
        expected = TinyModels.rows(name, "logits").map { |row| softmax(row) }
        expect(by_label.call(model.classify(record["texts"]))).to be_near(expected)
        firsts, seconds = record["pairs"].transpose
        expected = TinyModels.rows(name, "pair_logits").map { |row| softmax(row) }
        expect(by_label.call(model.classify(firsts, pair: seconds))).to be_near(expected)
      end
    end
  end

  describe Candle::Reranker do
    %w[bert-reranker xlm-roberta-reranker qwen3-reranker llama-reranker].each do |name|
      it "scores like #{name}'s reference" do
        record = TinyModels.record(name)
        model = described_class.from_pretrained(TinyModels.path(name), device: "cpu")
        scores = record["pairs"].map { |query, document| model.score(query, [document]).first }
        expect(scores).to be_near(TinyModels.rows(name, "logits").flatten, 1e-3)
      end
    end

    it "scores with the first token and with the mean" do
      model = described_class.from_pretrained(TinyModels.path("bert-reranker"), device: "cpu")
      %w[cls mean].each do |pooling|
        scores = TinyModels.record("bert-reranker")["pairs"].map do |query, document|
          model.rerank_with_pooling(query, [document], pooling).first[:score]
        end
        expect(scores).to be_near(TinyModels.rows("bert-reranker", "#{pooling}_logits").flatten)
      end
    end
  end

  describe Candle::NER do
    %w[bert-token roberta-token deberta-v2-token].each do |name|
      %w[none simple first average max].each do |strategy|
        it "finds the entities of transformers' pipeline with #{name}, aggregated by #{strategy}" do
          record = TinyModels.record(name, "entities.json")
          ner = described_class.from_pretrained(TinyModels.path(name), device: "cpu")
          found = ner.extract_entities(record["texts"], confidence_threshold: 0, aggregation: strategy)
          found.zip(record[strategy], record["texts"]).each do |entities, expected, text|
            expect(entities.map { |entity| entity[:label] }).to eq(expected.map { |entity| entity["label"] })
            expect(entities.map { |e| e[:confidence] }).to be_near(expected.map { |e| e["score"] })
            entities.zip(expected).each { |entity, other| expect_same_place(text, entity, other) }
          end
        end
      end
    end

    # The pipeline may count the space before a word; the entity's text never begins with one.
    def expect_same_place(text, entity, expected)
      expect(text[entity[:start]...entity[:end]]).to eq(entity[:text])
      expect(text[expected["start"]...expected["end"]].strip).to eq(entity[:text])
      expect(entity[:end]).to be_between(expected["start"], expected["end"])
    end
  end

  describe Candle::MaskedLM do
    %w[bert-masked roberta-masked].each do |name|
      it "fills like transformers' pipeline with #{name}" do
        record = TinyModels.record(name, "fillings.json")
        found = described_class.from_pretrained(TinyModels.path(name), device: "cpu").fill(record["text"], top_k: 5)
        expect(found.map { |entry| entry[:id] }).to eq(record["fillings"].map { |entry| entry["token"] })
        expect(found.map { |entry| entry[:score] }).to be_near(record["fillings"].map { |entry| entry["score"] })
        expect(found.map { |entry| entry[:sequence] }).to eq(record["fillings"].map { |entry| entry["sequence"] })
      end
    end
  end
end
