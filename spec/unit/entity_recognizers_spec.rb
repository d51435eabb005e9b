# frozen_string_literal: true

require "tempfile"

RSpec.describe "Recognizers without a model" do
  def places(text, entities)
    entities.each { |entity| expect(text[entity[:start]...entity[:end]]).to eq(entity[:text]) }
  end

  describe Candle::PatternEntityRecognizer do
    it "finds every match of every pattern, by characters" do
      recognizer = described_class.new("GENE", [/\b[A-Z]{3,}\d+\b/, 'CD\d+'])
      text = "Über TP53 und CD4, BRCA1"
      found = recognizer.recognize(text)
      places(text, found)
      expect(found.map { |entity| entity[:text] }).to eq(%w[BRCA1 CD4])
      expect(found.first).to eq(text: "BRCA1", label: "GENE", start: 19, end: 24, confidence: 1.0, source: "pattern")
      expect(recognizer.add_pattern(/TP\d+/)).to equal(recognizer)
      expect(recognizer.recognize(text).map { |entity| entity[:text] }).to include("TP53")
      expect(recognizer.patterns.size).to eq(3)
    end

    it "takes groups and empty matches for what they are" do
      text = "a1 b2"
      expect(described_class.new("X", [/([a-z])(\d)/]).recognize(text).map { |e| e[:text] }).to eq(%w[a1 b2])
      expect(described_class.new("X", [/z*/]).recognize(text)).to eq([])
    end

    [/a.c/m, /^x$/, /(?<y>\d+)-(?<z>\d+)/, /\bcat\b/i, /a{2,}?/, /[[:alpha:]]+\d?/, /\A\w+/, /\S+\z/, /[^a-z\s]+/x,
     /É+/i, /(?i)ünï/, /a(?=b)/, /(?<!x)y/, /(\w)\1/, /a++/, /x*|y/, /\h{4}/, /[\u{65e5}-\u{672c}]+/]
      .each do |pattern|
      it "finds what Ruby finds with #{pattern.inspect}" do
        text = "cat Cats aaab abc a\nc\nx\nxy yy 12-345 été Straße STRASSE 日本 beef Ünï9 end"
        expected = []
        text.scan(pattern) do
          match = Regexp.last_match
          expected << [match.begin(0), match.end(0)] unless match[0].empty?
        end
        found = described_class.new("X", [pattern]).recognize(text)
        expect(found.map { |entity| entity.values_at(:start, :end) }).to eq(expected)
      end
    end

    it "takes linear time where it can, and stops where it can't" do
      text = "#{"a" * 50_000}!"
      expect(described_class.new("X", [/(a+)+$/]).recognize(text)).to eq([])
      stub_const("Candle::TextPattern::TIME_LIMIT", 0.1)
      slow = described_class.new("X", [/(?=a)(a|a)*\1b/])
      expect { slow.recognize("a" * 40) }.to raise_error(Candle::InvalidInputError, /took longer than 0.1 s/)
    end

    it "reads texts of any size" do
      found = described_class.new("X", [/needle\d/]).recognize("#{"hay " * 500_000}needle7")
      expect(found).to eq([{ text: "needle7", label: "X", start: 2_000_000, end: 2_000_007, confidence: 1.0,
                             source: "pattern" }])
    end

    it "refuses what isn't a pattern" do
      expect { described_class.new("X", [5]) }.to raise_error(Candle::InvalidInputError, /Regexp or a String/)
      expect { described_class.new("X", ["("]) }.to raise_error(Candle::InvalidInputError, /not a regular expression/)
      expect { described_class.new("X").recognize(nil) }.to raise_error(Candle::InvalidInputError)
    end
  end

  describe Candle::GazetteerEntityRecognizer do
    it "finds whole words in any case, by characters" do
      recognizer = described_class.new("CITY", ["Paris", "New York", "York"])
      text = "İn NEW YORK, parisian Paris."
      found = recognizer.recognize(text)
      places(text, found)
      expect(found.map { |entity| entity[:text] }).to eq(["NEW YORK", "YORK", "Paris"])
      expect(found.last).to eq(text: "Paris", label: "CITY", start: 22, end: 27, confidence: 1.0, source: "gazetteer")
      expect(recognizer.terms).to include("new york")
    end

    it "knows letters beyond ASCII, and scripts without spaces" do
      expect(described_class.new("X", ["caf"]).recognize("café")).to eq([])
      found = described_class.new("CITY", ["東京"]).recognize("私は東京に住む")
      expect(found.map { |entity| entity[:start] }).to eq([2])
    end

    it "folds cases without losing its place" do
      text = "İm STRASSENNAMEN steht die Straße, ΣΟΦΌΣ"
      found = described_class.new("X", %w[strasse σοφός]).recognize(text)
      places(text, found)
      expect(found.map { |entity| entity[:text] }).to eq(%w[Straße ΣΟΦΌΣ])
    end

    it "takes very many terms, and more of them later" do
      recognizer = described_class.new("TERM", Array.new(20_000) { |index| "term number #{index}" })
      text = "first Term Number 7, then term number 19999 and term number 20000, "
      expect(recognizer.recognize(text).map { |entity| entity[:text] }).to eq(["Term Number 7", "term number 19999"])
      recognizer.add_terms("term number 20000")
      expect(recognizer.recognize(text * 2).size).to eq(6)
      started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      100.times { recognizer.recognize(text * 15) }
      expect(Process.clock_gettime(Process::CLOCK_MONOTONIC) - started).to be < 1
    end

    it "can tell cases apart" do
      recognizer = described_class.new("ORG", ["WHO"], case_sensitive: true)
      expect(recognizer.recognize("who is WHO?").map { |entity| entity[:start] }).to eq([7])
      expect(recognizer.case_sensitive).to be(true)
    end

    it "takes more terms, also from a file" do
      Tempfile.create("terms") do |file|
        file.write("# drugs\naspirin\n\n  ibuprofen \n")
        file.flush
        recognizer = described_class.new("DRUG").add_terms("heparin").load_from_file(file.path)
        expect(recognizer.terms.to_a).to eq(%w[heparin aspirin ibuprofen])
      end
      expect { described_class.new("X", [nil]) }.to raise_error(Candle::InvalidInputError, /terms\[0\]/)
    end
  end

  describe Candle::HybridNER do
    it "works without a model" do
      ner = described_class.new
      expect(ner.add_pattern_recognizer("CODE", [/[A-Z]{2}\d+/])).to equal(ner)
      expect(ner.add_gazetteer_recognizer("CITY", ["paris"], case_sensitive: false)).to equal(ner)
      found = ner.extract_entities("AB12 in Paris")
      expect(found.map { |entity| entity.values_at(:text, :label) }).to eq([%w[AB12 CODE], %w[Paris CITY]])
      expect(ner.extract_entities(["AB12", ""]).map(&:size)).to eq([1, 0])
      expect(ner.model_ner).to be_nil
      expect(ner.inspect).to eq("#<Candle::HybridNER no model, 1 of patterns, 1 of terms>")
      expect([*ner.pattern_recognizers, *ner.gazetteer_recognizers].map(&:inspect))
        .to eq(["#<Candle::PatternEntityRecognizer CODE 1 patterns>",
                "#<Candle::GazetteerEntityRecognizer CITY 1 terms>"])
    end

    it "replaces what patterns and terms match, exactly, and all of what overlaps" do
      ner = described_class.new.add_pattern_recognizer("CODE", [/[A-Z]{2}\d+/])
      expect(ner.redact("AB12 and xCD34y")).to eq("[CODE] and x[CODE]y")
      ner.add_gazetteer_recognizer("CITY", ["new york", "york minster"])
      expect(ner.entity_types).to eq(%w[CITY CODE])
      expect(ner.redact("in New York Minster")).to eq("in [CITY]")
      expect(ner.redact("AB12 York Minster", labels: :city)).to eq("AB12 [CITY]")
      expect { ner.redact("AB12", labels: ["PERSON"]) }
        .to raise_error(Candle::InvalidInputError, 'unknown label "PERSON": the labels are CITY, CODE')
      expect { described_class.new.redact("AB12", labels: ["X"]) }
        .to raise_error(Candle::InvalidInputError, /no recognizer was added/)
    end

    it "replaces a label also where one of another label overlaps it" do
      ner = described_class.new.add_gazetteer_recognizer("ORG", ["bank of england"])
      ner.add_gazetteer_recognizer("CITY", ["england and wales"])
      expect(ner.redact("the Bank of England and Wales", labels: "CITY")).to eq("the Bank of [CITY]")
    end

    it "keeps no overlap: first the earliest, then the surest, then the longest" do
      ner = described_class.new(TinyModels.path("bert-token"), device: "cpu")
      ner.add_gazetteer_recognizer("PLACE", ["paris", "paris is"])
      text = "paris is the lazy dog and 東京 jumping foxes"
      found = ner.extract_entities(text, confidence_threshold: 0)
      places(text, found)
      expect(found.first).to include(text: "paris is", label: "PLACE")
      expect(found.each_cons(2)).to all(satisfy { |one, other| one[:end] <= other[:start] })
      expect(found.size).to be > 1
    end
  end
end
