# frozen_string_literal: true

require "fileutils"
require "json"
require "tmpdir"

RSpec.describe Candle::Index do
  def score(similarity, one, other)
    pairs = one.zip(other)
    case similarity
    when :dot then pairs.sum { |a, b| a * b }
    when :euclidean then -Math.sqrt(pairs.sum { |a, b| (a - b)**2 })
    when :manhattan then -pairs.sum { |a, b| (a - b).abs }
    else pairs.sum { |a, b| a * b } / Math.sqrt(one.sum { |a| a * a } * other.sum { |b| b * b })
    end
  end

  def vectors(count, dimension, seed = 5)
    random = Random.new(seed)
    # Of different lengths, so that the kinds of similarity give different orders.
    Array.new(count) { Array.new(dimension) { random.rand(-1.0..1.0) }.map { |x| x * random.rand(0.2..3.0) } }
  end

  def best(similarity, query, rows, count)
    rows.each_with_index.map { |row, id| [id, score(similarity, query, row)] }.max_by(count) { |_, value| value }
  end

  described_class::SIMILARITIES.each do |similarity|
    it "compares by #{similarity}, and remembers it in the file" do
      rows = vectors(40, 7)
      query = vectors(1, 7, 9).first
      index = described_class.new(dimension: 7, similarity: similarity)
      index.add_all(rows.each_with_index.map { |row, id| [id, row] })
      Dir.mktmpdir do |folder|
        path = File.join(folder, "a.index")
        index.save(path)
        opened = described_class.open(path).add("more", [9.0] * 7)
        opened.delete("more")
        [index, opened].each do |one|
          expect(one.similarity).to eq(similarity)
          found = one.search(query, top_k: 9)
          wanted = best(similarity, query, rows, 9)
          expect(found.map { |hit| hit[:id] }).to eq(wanted.map(&:first))
          found.zip(wanted) { |hit, (_, value)| expect(hit[:score]).to be_within(1e-5).of(value) }
          some = one.search(query, top_k: 3, &:even?)
          expect(some.first[:id]).to eq(wanted.map(&:first).find(&:even?))
        end
      end
    end

    it "compares bytes by #{similarity} nearly alike" do
      rows = vectors(40, 32)
      query = vectors(1, 32, 9).first
      index = described_class.new(dimension: 32, dtype: :int8, similarity: similarity)
      index.add_all(rows.each_with_index.map { |row, id| [id, row] })
      found = index.search(query, top_k: 1).first
      wanted = best(similarity, query, rows, 1).first
      expect(found[:score]).to be_within(0.02 * wanted.last.abs + 0.02).of(wanted.last)
    end

    it "finds nearly all of the nearest by #{similarity} along a graph" do
      rows = vectors(3000, 8)
      index = described_class.new(dimension: 8, similarity: similarity)
      index.add_all(rows.each_with_index.map { |row, id| [id, row] }).build_graph
      Dir.mktmpdir do |folder|
        index.save(File.join(folder, "a.index"))
        opened = described_class.open(File.join(folder, "a.index"))
        hits = vectors(20, 8, 11).sum do |query|
          exact = opened.search(query, exact: true).map { |hit| hit[:id] }
          expect(exact.first).to eq(best(similarity, query, rows, 1).first.first)
          (opened.search(query, ef: 200).map { |hit| hit[:id] } & exact).size
        end
        expect(hits).to be >= 190
      end
    end
  end

  it "follows the model, unless something else is asked for" do
    Dir.mktmpdir do |folder|
      FileUtils.cp_r(TinyModels.path("bert-sentence/."), folder)
      file = File.join(folder, "config_sentence_transformers.json")
      File.write(file, JSON.generate(JSON.parse(File.read(file)).merge("similarity_fn_name" => "euclidean")))
      model = Candle::EmbeddingModel.from_pretrained(folder, device: "cpu")
      index = described_class.new(model: model).add(1, "the quick fox").add(2, "the lazy dog")
      expect(index.similarity).to eq(:euclidean)
      query, *rows = model.embed(["the dog", "the quick fox", "the lazy dog"])
      index = described_class.new(model: model).add(1, rows.first).add(2, rows.last)
      found = index.search(query, top_k: 2).to_h { |hit| hit.values_at(:id, :score) }
      expect(found[1]).to be_within(1e-5).of(model.similarity(query, rows.first))
      expect(found[2]).to be_within(1e-5).of(model.similarity(query, rows.last))
      expect(described_class.new(model: model, similarity: :cosine).similarity).to eq(:cosine)
      expect(described_class.new(model: model, dtype: :binary).similarity).to eq(:cosine)
    end
  end

  it "refuses what it does not compare by" do
    expect { described_class.new(dimension: 2, similarity: :hamming) }.to raise_error(ArgumentError, /similarity/)
    expect { described_class.new(dimension: 2, similarity: :dot, dtype: :binary) }.to raise_error(ArgumentError, /bits/)
    Dir.mktmpdir do |folder|
      path = File.join(folder, "a.index")
      described_class.new(dimension: 2).add(1, [1.0, 0.0]).save(path)
      bytes = File.binread(path)
      bytes.setbyte(9, 7)
      File.binwrite(path, bytes)
      expect { described_class.open(path) }.to raise_error(Candle::CorruptModelError, /compared by/)
    end
  end
end
