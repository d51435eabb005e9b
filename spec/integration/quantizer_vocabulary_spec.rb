# frozen_string_literal: true

require "json"

require "spec_helper"
require "support/quantizer_sources"
require "tmpdir"

# Byte-level vocabularies whose merges lead across the places where patterns cut.
RSpec.describe Candle::GgufVocabulary do
  letters = "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
  small = "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
  short = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
  rest = "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
  # As tokenizer.json of published checkpoints has them.
  patterns = {
    "tekken" => ["[^\\r\\n\\p{L}\\p{N}]?[#{letters}]*[#{small}]+|" \
                 "[^\\r\\n\\p{L}\\p{N}]?[#{letters}]+[#{small}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|#{rest}"],
    "seed-coder" => ["#{short}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|#{rest}"],
    "dbrx" => ["'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|" \
               "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"],
    # With the ends of lines themselves.
    "deepseek-v3" => ["\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|" \
                      "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|" \
                      "\\s+(?!\\S)|\\s+"],
    "llama-bpe" => ["#{short}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|#{rest}"]
  }
  merges = [%w[1 2], %w[12 3], %w[123 4], %w[x '], %w[' s], %w[A b], %w[Ab C], %w[Ċ Ċ], %w[! a], %w[Ġ Ġ], %w[! Ċ],
            %w[b C], %w[/ Ċ]]
  texts = ["1234 12345 123", "x's X'S it's", "AbC AbCd bC", "a\n\n b\n", "!a ! a", "a  b   c", "ends!\n/\n", "日本1234"]

  around do |example|
    Dir.mktmpdir do |directory|
      @directory = directory
      example.run
    end
  end

  # A checkpoint whose pre-tokenizer cuts by these patterns.
  define_method(:cutting_by) do |splits|
    path = QuantizerSources.write("arcee", File.join(@directory, "arcee"))
    file = File.join(path, "tokenizer.json")
    found = JSON.parse(File.read(file))
    old = found["model"]["merges"].map { |pair| (pair.is_a?(String) ? pair.split : pair).join }.uniq
    old.zip(merges) { |name, pair| found["model"]["vocab"][pair.join] = found["model"]["vocab"].delete(name) }
    found["model"]["merges"] = merges
    steps = splits.map { |one| { type: "Split", pattern: { Regex: one }, behavior: "Isolated", invert: false } }
    steps << { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false }
    found["pre_tokenizer"] = { type: "Sequence", pretokenizers: steps }
    File.write(file, JSON.generate(found))
    path
  end

  define_method(:ids) do |path|
    llm = Candle::LLM.from_pretrained(path, device: "cpu")
    texts.map { |text| llm.tokenizer.encode(text, add_special_tokens: false) }
  ensure
    llm&.close
  end

  patterns.each do |name, splits|
    it "names #{name}, and the file has the checkpoint's ids" do
      source = cutting_by(splits)
      path = Candle::Quantizer.quantize(source, to: File.join(@directory, "m.gguf"), type: "f16")
      expect(Candle::Weights.open(path).metadata["tokenizer.ggml.pre"]).to eq(name)
      expect(ids(path)).to eq(ids(source))
    end
  end

  it "is asked with texts that patterns cut apart" do
    expect(patterns.values.map { |splits| ids(cutting_by(splits)) }.uniq.size).to be >= 3
  end

  it "refuses patterns that have no name" do
    expect { Candle::Quantizer.quantize(cutting_by(["\\d+"]), to: File.join(@directory, "m.gguf"), type: "f16") }
      .to raise_error(Candle::UnsupportedModelError, /no name for a pre-tokenizer that cuts by \["\\\\d\+"\]/)
  end
end
