# frozen_string_literal: true

# Every encoder type through every class whose head transformers has for it, against what transformers computes of the
# same ids, types and weights.
RSpec.describe SeededEncoders do
  def softmax(row)
    powers = row.map { |logit| Math.exp(logit - row.max) }
    powers.map { |power| power / powers.sum }
  end

  # Numbers beyond 1 may be off in proportion.
  def expect_near(found, expected)
    scale = [expected.flatten.map(&:abs).max, 1.0].max
    expect(found).to be_near(expected, 1e-4 * (1 + scale))
  end

  # Of an answer's probability, that of its start and that of its end are factors: what two answers share cancels out.
  def expect_ratio(one, other, expected)
    expect(Math.log(one / other)).to be_within(1e-3).of(expected)
  end

  described_class.names.each do |name|
    record = described_class.record(name)

    describe name do
      it "has the hidden states of the reference" do
        described_class.each_case(name, "body", Candle::EmbeddingModel) do |model, example|
          states = model.embeddings(example.text).to_a.first
          expect(states.size).to eq(example.ids.size)
          example.rows.each { |place, row| expect_near(states[place].first(row.size), row) }
          next if example.typed

          first = model.embed_ids([example.ids], pooling: :cls, normalize: false).first
          expect_near(first, example.rows[0])
        end
      end

      heads = described_class::HEADS & record.keys

      if heads.include?("masked")
        it "fills masks" do
          described_class.each_case(name, "masked", Candle::MaskedLM) do |model, example|
            found = model.fill(example.text, top_k: example.rows[0].size)
            found = found.first if found.first.is_a?(Array)
            expect(found.map { |filling| filling[:score] }).to eq(found.map { |filling| filling[:score] }.sort.reverse)
            scores = found.sort_by { |filling| filling[:id] }.map { |filling| filling[:score] }
            expect(scores).to be_near(softmax(example.rows[0]))
          end
        end
      end

      if heads.include?("sequence")
        it "classifies pairs" do
          described_class.each_case(name, "sequence", Candle::Classifier) do |model, example|
            first, second = example.pair
            found = model.classify(first, pair: second).to_h { |entry| entry.values_at(:label, :score) }
            expect(found.values_at(*model.labels)).to be_near(softmax(example.rows[0]))
          end
        end

        it "reranks by a head of one label" do
          described_class.each_case(name, "sequence", Candle::Reranker, labels: 1) do |model, example|
            query, document = example.pair
            expect_near(model.score(query, [document, document]), [example.rows[0].first] * 2)
          end
        end

        it "refuses to rerank by a head of several labels" do
          expect { described_class.each_case(name, "sequence", Candle::Reranker) { nil } }
            .to raise_error(Candle::UnsupportedModelError, /gives 3 scores per text.*Classifier/m)
        end
      end

      if heads.include?("token")
        it "tags tokens" do
          described_class.each_case(name, "token", Candle::NER) do |model, example|
            found = model.predict_tokens(example.text).to_h { |token| [token["index"], token["probabilities"].values] }
            rows = example.rows.slice(*found.keys)
            expect(rows.size).to eq(example.typed ? 2 : example.rows.size)
            rows.each { |place, row| expect(found[place]).to be_near(softmax(row)) }
          end
        end
      end

      if heads.include?("question")
        it "answers questions" do
          compared = 0
          described_class.each_case(name, "question", Candle::QuestionAnswerer) do |model, example|
            question, context = example.pair
            answers = model.answer(question, context, top_k: 10_000, max_answer_length: example.ids.size)
            score = answers.to_h { |answer| [answer[:start]...answer[:end], answer[:score]] }
            whole = score.fetch(0...context.size)
            middle, last = example.rows.values_at(example.ids.size / 2, example.ids.size - 1)
            # Equal words are one answer, so that only words that stand once are compared.
            ids = example.halves.last
            width = described_class.word(0).size
            places = { 0...width => last[1] - middle[1], (context.size - width)...context.size => middle[0] - last[0] }
            places = places.zip([ids.first, ids.last]).filter_map { |place, id| place if ids.one?(id) }
            places.each { |place, expected| expect_ratio(whole, score.fetch(place), expected) }
            compared += places.size
          end
          expect(compared).to be >= 2
        end
      end

      { "masked" => Candle::MaskedLM, "sequence" => Candle::Classifier, "token" => Candle::NER,
        "question" => Candle::QuestionAnswerer }.each do |head, model_class|
        # Beside a bias that not every checkpoint has, the embeddings are all of this one's head.
        next if name == "eurobert-tied" && head == "masked"

        it "has no #{head} head without its tensors" do
          expect { described_class.each_case(name, "body", model_class) { nil } }.to raise_error(Candle::Error, /head/)
        end
      end
    end
  end
end
