# frozen_string_literal: true

require "stringio"

RSpec.describe Candle::TextSplitter do
  let(:tokenizer) { Candle::Tokenizer.from_file(File.join(TinyModels.path("bert-sentence"), "tokenizer.json")) }
  let(:text) do
    "The quick brown fox jumps over the lazy dog. It barks! Does it? Yes.\n\n" \
      "Größe und Maß: 日本語の文。二つ目の文。 A second paragraph follows here.\n\nThe end."
  end

  def texts(...)
    described_class.new(...).split(text).map(&:text)
  end

  it "cuts where paragraphs and sentences end, and loses nothing" do
    expect(texts(size: 80)).to eq(text.scan(/.+?(?:\n\n|\z)/m).then { |one, two, three| [one, two + three] })
    pieces = texts(size: 50)
    expect(pieces.join).to eq(text)
    expect(pieces.map(&:size)).to all(be <= 50)
    expect(pieces.first).to eq("The quick brown fox jumps over the lazy dog. ")
    expect(texts(size: 10).join).to eq(text)
    expect(texts(size: 1).join).to eq(text)
  end

  it "counts a tokenizer's tokens" do
    chunks = described_class.new(tokenizer, size: 9).split(text)
    expect(chunks.map(&:text).join).to eq(text)
    expect(chunks.map(&:tokens)).to all(be <= 9)
    expect(chunks.map(&:tokens))
      .to eq(chunks.map { |chunk| tokenizer.encode(chunk.text, add_special_tokens: false).size })
  end

  it "knows its places in characters, with overlap and without" do
    [0, 4].each do |overlap|
      chunks = described_class.new(tokenizer, size: 12, overlap: overlap).split(text)
      chunks.each { |chunk| expect(text[chunk.start...chunk.end]).to eq(chunk.text) }
      expect(chunks.first.start).to eq(0)
      expect(chunks.last.end).to eq(text.length)
      expect(chunks.each_cons(2)).to all(satisfy { |one, other| other.start <= one.end && other.start > one.start })
    end
    splitter = described_class.new(size: 30, overlap: 12, format: :sentences)
    chunks = splitter.split("One two three. Four five. Six seven. Eight.")
    expect(chunks.map(&:text)).to eq(["One two three. Four five. ", "Four five. Six seven. Eight."])
  end

  it "keeps sections and blocks of code of Markdown together" do
    markdown = "# One\n\nSome text.\n\n```ruby\n# no heading\n\nx = 1\n```\n\n## Two\n\nMore text of the second part.\n"
    expect(described_class.new(size: 60, format: :markdown).split(markdown).map(&:text))
      .to eq([markdown[0...markdown.index("## Two")], markdown[markdown.index("## Two")..]])
    blocks = described_class.new(size: 36, format: :markdown).split(markdown).map(&:text)
    expect(blocks).to include("```ruby\n# no heading\n\nx = 1\n```\n\n")
    expect(blocks.join).to eq(markdown)
  end

  it "keeps definitions of code together" do
    code = "require 'x'\n\ndef one\n  1\nend\n\ndef two\n  2\nend\n"
    expect(described_class.new(size: 25, format: :code).split(code).map(&:text))
      .to eq(["require 'x'\n\n", "def one\n  1\nend\n\n", "def two\n  2\nend\n"])
  end

  it "takes its size from a model, and refuses what is impossible" do
    model = Candle::EmbeddingModel.from_pretrained(TinyModels.path("bert-sentence"), device: "cpu")
    splitter = described_class.new(model)
    expect(splitter.size).to eq(model.max_length - model.tokenizer.encode("").size)
    expect(splitter.inspect).to eq("#<Candle::TextSplitter text #{splitter.size} tokens, overlap 0>")
    expect(splitter.split("")).to eq([])
    expect { described_class.new }.to raise_error(ArgumentError, /size is required/)
    expect { described_class.new(size: 5, overlap: 5) }
      .to raise_error(ArgumentError, /overlap must be an Integer from 0/)
    expect { described_class.new(size: 5, format: :poem) }.to raise_error(ArgumentError, /format must be one of :text/)
    expect { described_class.new(3, size: 5) }.to raise_error(ArgumentError, /counts with a Tokenizer/)
    expect { splitter.split(nil) }.to raise_error(Candle::InvalidInputError)
  end

  it "reads streams block by block, to the same chunks" do
    long = Array.new(60_000) { |index| "Sentence number #{index} — ganz groß. " }.join
    splitter = described_class.new(size: 500, format: :sentences)
    whole = splitter.split(long)
    [StringIO.new(long), long.chars.each_slice(70_000).map(&:join)].each do |source|
      chunks = splitter.each_chunk(source).to_a
      expect(chunks.map(&:text).join).to eq(long)
      chunks.each_slice(97) { |chunk, *| expect(long[chunk.start...chunk.end]).to eq(chunk.text) }
      expect(chunks.size).to be_within(5).of(whole.size)
    end
    expect(splitter.each_chunk(long).first(2)).to eq(whole.first(2))
  end
end
