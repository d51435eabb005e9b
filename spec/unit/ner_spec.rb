# frozen_string_literal: true

RSpec.describe Candle::NER do
  let(:path) { TinyModels.path("bert-token") }
  let(:ner) { described_class.from_pretrained(path, device: "cpu") }
  let(:text) { "Café in Paris, 東京 dogs" }

  it "names its labels and kinds of entities" do
    expect(ner.labels).to eq("id2label" => { 0 => "O", 1 => "B-PER", 2 => "I-PER", 3 => "B-LOC", 4 => "I-LOC" },
                             "label2id" => { "O" => 0, "B-PER" => 1, "I-PER" => 2, "B-LOC" => 3, "I-LOC" => 4 },
                             "num_labels" => 5)
    expect(ner.entity_types).to eq(%w[LOC PER])
    expect(ner.supports_entity?("per")).to be(true)
    expect(ner.supports_entity?(:GENE)).to be(false)
    expect(ner.model_info).to include(architecture: "BertForTokenClassification")
    expect(described_class.suggested_models.values).to all(include(:model, :note))
  end

  it "counts characters and the tokenizer's own tokens", :gc_stress do
    entities = ner.extract_entities(text, confidence_threshold: 0)
    expect(entities).not_to be_empty
    tokens = ner.tokenizer.encode_with_offsets(text)
    entities.each do |entity|
      expect(entity.keys).to eq(%i[text label start end confidence token_start token_end])
      expect(text[entity[:start]...entity[:end]]).to eq(entity[:text])
      expect(tokens[:offsets][entity[:token_start]].first).to eq(entity[:start])
      expect(tokens[:offsets][entity[:token_end] - 1].last).to eq(entity[:end])
    end
  end

  it "leaves out what it is not sure of" do
    all = ner.extract_entities(text, confidence_threshold: 0)
    limit = all.map { |entity| entity[:confidence] }.sort[all.size / 2]
    expect(ner.extract_entities(text, confidence_threshold: limit)).to eq(all.select { |e| e[:confidence] >= limit })
    expect(ner.extract_entities(text, confidence_threshold: 1)).to eq([])
  end

  it "gives one list per text for an Array" do
    texts = [text, "", "the dog"]
    lists = ner.extract_entities(texts, confidence_threshold: 0)
    expect(lists.map(&:size)).to eq(texts.map { |one| ner.extract_entities(one, confidence_threshold: 0).size })
    expect(lists[1]).to eq([])
    expect(ner.extract_entities([])).to eq([])
  end

  it "tells what each token is" do
    tokens = ner.predict_tokens(text)
    expect(tokens.map { |token| token["token"] }).to eq(ner.tokenizer.encode_to_tokens(text)[1...-1])
    tokens.each do |token|
      expect(token["probabilities"].values.sum).to be_within(1e-5).of(1)
      expect(token["confidence"]).to eq(token["probabilities"].values.max)
      expect(token["probabilities"][token["label"]]).to eq(token["confidence"])
    end
    expect(tokens.first).to include("index" => 1, "start" => 0)
  end

  it "reads texts of any length: every token once, every entity inside the text" do
    long = "the dog and the fox live in Paris and Café 東京 " * 60
    tokens = ner.predict_tokens(long)
    expect(tokens.map { |token| token["index"] }).to eq((1..tokens.size).to_a)
    expect(tokens.size).to eq(ner.tokenizer.encode(long).size - 2)
    entities = ner.extract_entities(long, confidence_threshold: 0)
    entities.each { |entity| expect(long[entity[:start]...entity[:end]]).to eq(entity[:text]) }
    expect(entities.each_cons(2)).to all(satisfy { |one, other| one[:end] <= other[:start] })
  end

  it "filters by kind, whatever its case" do
    all = ner.extract_entities(text, confidence_threshold: 0)
    expect(ner.extract_entity_type(text, "loc", confidence_threshold: 0)).to eq(all.select { |e| e[:label] == "LOC" })
    expect(ner.extract_entity_type([text], :PER, confidence_threshold: 0)).to eq([all.select do |e|
                                                                                    e[:label] == "PER"
                                                                                  end])
  end

  describe "#redact" do
    # Entities as a model might return them, by what of the text they cover.
    def finding(text, *found)
      entities = found.map do |part, label, confidence = 0.95|
        first = text.index(part)
        { text: part, label: label, start: first, end: first + part.size, confidence: confidence }
      end
      allow(ner).to receive(:extract_entities).and_return([entities])
    end

    it "puts something else in the place of entities" do
      sentence = "the dog live in Paris"
      found = ner.extract_entities(sentence, confidence_threshold: 0, aggregation: :first)
      expect(found.map { |entity| entity[:text] }.join).not_to be_empty
      expected = found.reverse.reduce(sentence) do |rest, entity|
        "#{rest[0...entity[:start]]}[#{entity[:label]}]#{rest[entity[:end]..]}"
      end
      expect(ner.redact(sentence, confidence_threshold: 0)).to eq(expected)
      expect(ner.redact([sentence, ""], confidence_threshold: 0)).to eq([expected, ""])
      first = found.first
      one = ner.redact(sentence, labels: [first[:label].downcase], with: "<%{text}>", confidence_threshold: 0) # rubocop:disable Style/FormatStringToken
      expect(one).to include("<#{first[:text]}>")
      expect(ner.redact(sentence, with: ->(entity) { entity[:text].upcase }, confidence_threshold: 0))
        .to include(first[:text].upcase)
      expect { ner.redact(sentence, with: 3) }.to raise_error(ArgumentError, /with must be a String or a Proc/)
    end

    it "refuses labels that the model does not have, and names those that it has" do
      expect { ner.redact(text, labels: ["GENE"]) }
        .to raise_error(Candle::InvalidInputError, 'unknown label "GENE": the labels are LOC, PER')
      expect { ner.redact(text, labels: %w[PER GENE]) }.to raise_error(Candle::InvalidInputError, /"GENE"/)
      expect { ner.redact(text, labels: []) }
        .to raise_error(Candle::InvalidInputError, /labels is empty: pass nil for all entities, or some of LOC, PER/)
    end

    it "knows common synonyms of labels" do
      sentence = "Ada was in Rome"
      finding(sentence, %w[Ada PER], %w[Rome LOC])
      { "PERSON" => "[PER] was in Rome", :person => "[PER] was in Rome", "per" => "[PER] was in Rome",
        "GPE" => "Ada was in [LOC]", "Location" => "Ada was in [LOC]", nil => "[PER] was in [LOC]" }
        .each { |label, expected| expect(ner.redact(sentence, labels: label)).to eq(expected) }
    end

    it "never splits a word, and replaces what overlaps together" do
      sentence = "Priya Merkel's café (Änne-Lise)"
      finding(sentence, %w[Pri PER], ["ya Merkel", "PER"], ["nn", "LOC", 0.91])
      expect(ner.redact(sentence)).to eq("[PER]'s café ([LOC]-Lise)")
      finding(sentence, ["ya", "LOC", 0.91], ["Pri", "PER", 0.99])
      expect(ner.redact(sentence)).to start_with("[PER] Merkel")
      expect(ner.redact(sentence, with: ->(entity) { entity.values_at(:text, :start, :end).inspect }))
        .to start_with('["Priya", 0, 5] Merkel')
      finding("私は東京に住む", %w[東京 LOC])
      expect(ner.redact("私は東京に住む")).to eq("私は[LOC]に住む")
    end

    it "gives each word one label unless another aggregation is asked for" do
      expect(ner).to receive(:extract_entities).with(["a"], aggregation: :first).and_return([[]])
      ner.redact("a")
      expect(ner).to receive(:extract_entities).with(["a"], aggregation: :max).and_return([[]])
      ner.redact("a", aggregation: :max)
    end
  end

  it "analyzes and formats" do
    expect(ner.analyze(text, confidence_threshold: 0))
      .to eq(entities: ner.extract_entities(text, confidence_threshold: 0), tokens: ner.predict_tokens(text))
    formatted = ner.format_entities(text, confidence_threshold: 0)
    expect(formatted.gsub(/\[(?:PER|LOC):[\d.]+\]/, "")).to eq(text)
    expect(formatted.scan(/\[(?:PER|LOC)/).size).to eq(ner.extract_entities(text, confidence_threshold: 0).size)
    expect(ner.format_entities(text, confidence_threshold: 1)).to eq(text)
  end

  it "refuses what it can't read" do
    expect { ner.extract_entities(nil) }.to raise_error(Candle::InvalidInputError, /nil/)
    expect { ner.extract_entities(["a", 5]) }.to raise_error(Candle::InvalidInputError, /texts\[1\]/)
    expect { ner.extract_entities("a", aggregation: :median) }.to raise_error(ArgumentError, /:none, :simple/)
    expect { ner.extract_entities("a", confidence_threshold: 2) }.to raise_error(ArgumentError, /0 to 1/)
    expect { described_class.from_pretrained(TinyModels.path("bert-sequence"), device: "cpu") }
      .to raise_error(Candle::UnsupportedModelError, /BertForSequenceClassification/)
  end
end
