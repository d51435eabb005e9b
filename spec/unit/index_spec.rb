# frozen_string_literal: true

require "tmpdir"

RSpec.describe Candle::Index do
  dimension = 24

  def vector(seed, size = 24)
    random = Random.new(seed)
    Array.new(size) { random.rand(-1.0..1.0) }
  end

  def cosine(one, other)
    dot = ->(a, b) { a.zip(b).sum { |x, y| x * y } }
    dot.call(one, other) / Math.sqrt(dot.call(one, one) * dot.call(other, other))
  end

  def filled(count, dtype: :f32)
    described_class.new(dimension: 24, dtype: dtype).add_all((0...count).map { |id| [id, vector(id)] })
  end

  around { |example| Dir.mktmpdir { |directory| Dir.chdir(directory) { example.run } } }

  { f32: 1e-5, int8: 0.02, binary: 0.4 }.each do |dtype, tolerance|
    it "finds the nearest of #{dtype} rows" do
      index = filled(1500, dtype: dtype)
      query = vector(5000)
      found = index.search(query, top_k: 7)
      expect(found.map { |hit| hit[:score] }).to eq(found.map { |hit| hit[:score] }.sort.reverse)
      found.each { |hit| expect(hit[:score]).to be_within(tolerance).of(cosine(query, vector(hit[:id]))) }
      next if dtype == :binary

      best = (0...1500).max_by { |id| cosine(query, vector(id)) }
      expect(found.first[:id]).to eq(best)
    end
  end

  it "takes vectors as Arrays, packed Strings and Tensors, and rows of its own type" do
    values = vector(1)
    index = described_class.new(dimension: dimension)
    index.add("array", values).add("packed", values.pack("e*")).add("tensor", Candle::Tensor.new(values, :f32))
    index["double"] = Candle::Tensor.new([values], :f64)
    expect(index.search(values.pack("e*")).map { |hit| hit[:score].round(5) }).to eq([1.0] * 4)
    model = Candle::EmbeddingModel.from_pretrained(TinyModels.path("bert-sentence"))
    %i[int8 binary].each do |dtype|
      rows = described_class.new(dimension: model.dimension, dtype: dtype)
      rows.add("own", model.embed("fox", as: dtype)).add("numbers", model.embed("fox"))
      scores = rows.search(model.embed("fox", as: dtype)).map { |hit| hit[:score] }
      expect(scores).to eq([scores.first] * 2)
      expect(rows.search(model.embed("fox")).first[:score]).to be_within(0.02).of(1.0)
    end
  end

  it "is searched by an embedding model with texts" do
    model = Candle::EmbeddingModel.from_pretrained(TinyModels.path("bert-sentence"))
    texts = ["the quick fox", "hello world", "the lazy dog"]
    index = described_class.new(dimension: model.dimension).add_all(texts.zip(model.embed(texts)))
    expect(model.search("the lazy dog", index,
                        top_k: 2).first).to match(id: "the lazy dog", score: be_within(1e-4).of(1))
    expect(model.search("fox", index, top_k: nil).size).to eq(3)
  end

  it "replaces, deletes and knows its ids" do
    index = filled(10)
    expect([index.size, index.length, index.empty?, index.include?(3), index.include?("3")])
      .to eq([10, 10, false, true, false])
    expect([index.delete(3), index.delete(3), index.size]).to eq([true, false, 9])
    index.add(4, vector(3))
    expect([index.search(vector(3)).first[:id], index.size]).to eq([4, 9])
    expect(described_class.new(dimension: 2).search([1, 0])).to eq([])
    expect(index.inspect).to eq("#<Candle::Index 9 vectors of 24 f32>")
  end

  it "returns what a block lets through, and asks it about few" do
    index = filled(2000)
    query = vector(9)
    all = index.search(query, top_k: nil).map { |hit| hit[:id] }
    asked = []
    found = index.search(query, top_k: 5) { |id| (asked << id) && id.even? }
    expect(found.map { |hit| hit[:id] }).to eq(all.select(&:even?).first(5))
    expect(asked).to eq(all.first(asked.size))
    expect(asked.size).to be < 50
    expect(index.search(query, top_k: 3) { |id| id == all.last }.map { |hit| hit[:id] }).to eq([all.last])
    expect(index.search(query) { false }).to eq([])
  end

  it "searches among some ids" do
    index = filled(500)
    query = vector(9)
    some = [3, 77, 401, 9999, "no"]
    expect(index.search(query, among: some).map { |hit| hit[:id] })
      .to eq([3, 77, 401].sort_by { |id| -cosine(query, vector(id)) })
    expect(index.search(query, among: some) { |id| id != 77 }.size).to eq(2)
    expect(index.search(query, among: [])).to eq([])
  end

  %i[f32 int8 binary].each do |dtype|
    it "keeps #{dtype} rows in a file that it maps" do
      index = filled(100, dtype: dtype)
      index.add("text ü", vector(777))
      index.delete(0)
      expect(index.save("vectors")).to eq(File.expand_path("vectors"))
      opened = described_class.open("vectors")
      expect([opened.size, opened.dimension, opened.dtype]).to eq([100, 24, dtype])
      expect(opened.search(vector(777), top_k: 5)).to eq(index.search(vector(777), top_k: 5))
      opened.add(0, vector(0))
      opened.delete("text ü")
      opened.save("vectors")
      expect(described_class.open("vectors").search(vector(777)).map { |hit| hit[:id] }).not_to include("text ü")
      expect(index.search(vector(777), top_k: 1).first[:id]).to eq("text ü")
      expect(Dir.children(".")).to eq(["vectors"])
    end
  end

  it "leaves the old file where saving is interrupted" do
    filled(5).save("vectors")
    pid = fork do
      large = described_class.new(dimension: 24).add_all((0...20_000).map { |id| [id, vector(1)] })
      loop { large.save("vectors") }
    end
    sleep 0.7
    Process.kill(:KILL, pid)
    Process.wait(pid)
    expect([5, 20_000]).to include(described_class.open("vectors").size)
  end

  it "may be used by several threads at once" do
    index = filled(300)
    writer = Thread.new { 200.times { |id| index.add(1000 + id, vector(id)) && index.delete(id) } }
    readers = Array.new(3) { Thread.new { 60.times.map { index.search(vector(3)).first[:score] } } }
    expect(readers.flat_map(&:value)).to all(be_within(1e-5).of(1.0))
    writer.join
    expect(index.size).to eq(300)
  end

  it "says what is wrong with a call" do
    index = described_class.new(dimension: 4)
    expect { described_class.new(dimension: 0) }.to raise_error(ArgumentError, /dimension must be a positive Integer/)
    expect { described_class.new(dimension: 4, dtype: :f64) }.to raise_error(ArgumentError, /:f32, :int8, :binary/)
    expect { described_class.new(dimension: 10**6) }.to raise_error(Candle::InvalidInputError, /65536/)
    expect { index.add(:a, [0] * 4) }.to raise_error(ArgumentError, /an id must be an Integer or a String/)
    expect { index.add(2**64, [0] * 4) }.to raise_error(Candle::InvalidInputError, /64 bits/)
    expect { index.add(1, [0] * 3) }.to raise_error(Candle::InvalidInputError, /4 components, which take 16 bytes/)
    expect { index.add(1, [0, 0, 0, Float::NAN]) }.to raise_error(Candle::InvalidInputError, /vector of 1 has NaN/)
    expect { index.add(1, [0, 0, 0, "x"]) }.to raise_error(Candle::InvalidInputError, /numbers only, not "x"/)
    expect { index.add(1, Object.new) }.to raise_error(ArgumentError, /packed String or a Tensor/)
    expect { index.add_all(3) }.to raise_error(ArgumentError, /Enumerable/)
    expect { index.search([0] * 5) }.to raise_error(Candle::InvalidInputError, /not 20/)
    expect { index.search([0] * 4, top_k: -1) }.to raise_error(ArgumentError, /top_k/)
    expect { described_class.open("none") }.to raise_error(Candle::InvalidInputError, /there is no index .*none/)
    expect { index.save("none/x") }.to raise_error(Candle::InvalidInputError, /can't be written/)
    File.write("other", "hello")
    expect { described_class.open("other") }.to raise_error(Candle::CorruptModelError, /not a sound index/)
    expect { index.dup }.to raise_error(Candle::Error, /can't be copied/)
  end
end
