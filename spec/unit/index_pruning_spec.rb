# frozen_string_literal: true

require "tmpdir"

# Rows of bits with finer ones, and texts of many vectors with one of fixed size: recall beside exact search, and files.
RSpec.describe Candle::Index do
  around { |example| Dir.mktmpdir { |folder| (@folder = folder) && example.run } }

  def path(name = "index")
    File.join(@folder, name)
  end

  def ids(hits)
    hits.map { |hit| hit[:id] }
  end

  def recall(pairs)
    pairs.sum { |found, wanted| (found & wanted).size } / pairs.sum { |_, wanted| wanted.size }.to_f
  end

  describe "rows of bits that are rescored" do
    let(:random) { Random.new(7) }
    let(:centers) { Array.new(40) { Array.new(96) { random.rand(-1.0..1.0) } } }
    let(:rows) { Array.new(2000) { |number| near(centers[number % 40]) } }
    let(:queries) { Array.new(30) { |number| near(centers[number]) } }
    let(:exact) { filled(dtype: :f32) }

    def near(center)
      center.map { |value| value + random.rand(-0.9..0.9) }
    end

    def filled(**options)
      described_class.new(dimension: 96, **options).add_all(rows.each_with_index.map { |row, id| [id, row] })
    end

    def recall_of(index, **options)
      recall(queries.map { |query| [ids(index.search(query, **options)), ids(exact.search(query))] })
    end

    it "find nearly all that exact search finds, and more than bits alone" do
      bits = recall_of(filled(dtype: :binary))
      int8 = recall_of(filled(dtype: :binary, rescore: :int8))
      f32 = recall_of(filled(dtype: :binary, rescore: :f32))
      expect(int8).to be >= 0.9
      expect(f32).to be >= int8 - 0.02
      expect(bits).to be < int8 - 0.1
    end

    it "have the scores of the finer rows" do
      index = filled(dtype: :binary, rescore: :f32)
      found = index.search(queries.first, candidates: 2000)
      expect(ids(found)).to eq(ids(exact.search(queries.first)))
      expect(found.map { |hit| hit[:score] }).to eq(exact.search(queries.first).map { |hit| hit[:score] })
      bytes = filled(dtype: :int8).search(queries.first).map { |hit| hit[:score] }
      expect(filled(dtype: :binary, rescore: :int8).search(queries.first, exact: true).map { |hit| hit[:score] })
        .to eq(bytes)
    end

    it "compare more candidates when asked to, along a graph too" do
      index = filled(dtype: :binary, rescore: :int8)
      few = recall_of(index, candidates: 10)
      expect(recall_of(index, candidates: 500)).to be > few
      index.build_graph
      expect(recall_of(index, ef: 200)).to be >= 0.85
    end

    it "come back from a file, with what was replaced and deleted" do
      index = filled(dtype: :binary, rescore: :int8)
      index.delete(5)
      index.add(7, rows[8])
      index.add(3000, queries.first)
      opened = described_class.open(index.save(path))
      expect(opened.rescore).to eq(:int8)
      expect(opened.size).to eq(2000)
      queries.each { |query| expect(opened.search(query)).to eq(index.search(query)) }
      expect(opened.search(queries.first, top_k: 1).first[:id]).to eq(3000)
      opened.add(4000, queries[1])
      expect(opened.search(queries[1], top_k: 1).first[:id]).to eq(4000)
      again = described_class.open(opened.save(path("again")))
      expect(again.search(queries[2])).to eq(opened.search(queries[2]))
    end

    it "refuse rows of bits, and damaged files" do
      index = filled(dtype: :binary, rescore: :int8)
      expect { index.add(1, "\x01".b * 12) }.to raise_error(Candle::InvalidInputError, /finer rows/)
      index.save(path)
      bytes = File.binread(path)
      [bytes[0...-40], bytes.byteslice(0, 5000), bytes.dup.tap { |all| all.setbyte(12, 9) },
       bytes.dup.tap { |all| all.setbyte(12, 0) }, bytes.dup.tap { |all| all.setbyte(31, 0x7f) }].each do |damaged|
        File.binwrite(path("damaged"), damaged)
        expect { described_class.open(path("damaged")) }.to raise_error(Candle::CorruptModelError)
      end
    end

    it "are for bits alone" do
      expect do
        described_class.new(dimension: 4,
                            rescore: :int8)
      end.to raise_error(Candle::InvalidInputError, /rescoring is for binary rows/)
      expect { described_class.new(dimension: 4, dtype: :binary, rescore: :binary) }.to raise_error(ArgumentError)
    end
  end

  describe "texts of many vectors" do
    let(:model) { Candle::LateInteractionModel.from_pretrained(TinyModels.path("colbert"), device: "cpu") }
    let(:words) { %w[the quick brown fox jumps over lazy dog hello world paris and live in cafe happy so it is a] }
    let(:random) { Random.new(3) }
    let(:texts) { Array.new(300) { |number| "#{Array.new(9) { words.sample(random: random) }.join(" ")} #{number}" } }
    let(:queries) { Array.new(25) { Array.new(4) { words.sample(random: random) }.join(" ") } }
    let(:pruning) { { repetitions: 12, bits: 3, projection: 16 } }
    let(:index) { described_class.new(model: model, pruning: pruning).add_all(pairs) }

    def pairs
      texts.each_with_index.map { |text, id| [id, text] }
    end

    it "find nearly all that MaxSim over all texts finds, with its scores" do
      exact = described_class.new(model: model).add_all(pairs)
      found = queries.map { |query| [index.search(query, candidates: 60), exact.search(query)] }
      expect(recall(found.map { |one, other| [ids(one), ids(other)] })).to be >= 0.85
      expect(recall(queries.map { |query| [ids(index.search(query, candidates: 10)), ids(exact.search(query))] }))
        .to be < 1
      index.search(queries.first, exact: true).zip(exact.search(queries.first)) do |one, other|
        expect(one[:score]).to be_within(1e-4).of(other[:score])
      end
    end

    it "come back from a file that others append to" do
      saved = index.save(path)
      before = queries.map { |query| ids(index.search(query, candidates: 40)) }
      opened = described_class.open(saved, model: model)
      expect(opened.pruning).to eq(index.pruning)
      expect(queries.map { |query| ids(opened.search(query, candidates: 40)) }).to eq(before)

      writer = described_class.open(saved, model: model, write: true)
      writer.add(900, "paris paris paris")
      writer.add(1, "paris happy paris")
      writer.delete(2)
      writer.close
      opened = described_class.open(saved, model: model)
      found = [opened, writer].map { |one| ids(one.search("paris", candidates: 40, top_k: 3)) }
      expect(found.first).to eq(found.last)
      all = opened.search("paris", candidates: 400, top_k: 400)
      expect(ids(all)).to match_array([*0..1, *3..299, 900])
      expect(all.find { |hit| hit[:id] == 1 }[:text]).to eq("paris happy paris")
      expect(opened.include?(2)).to be(false)
    end

    it "take filters and conditions" do
      expect(ids(index.search(queries.first, among: [1, 2, 3], top_k: 5))).to contain_exactly(1, 2, 3)
      expect(ids(index.search(queries.first, top_k: 5) { |id| id > 290 })).to all(be > 290)
    end

    it "refuse what can't be" do
      expect { described_class.new(model: model, pruning: { bits: 40 }) }.to raise_error(Candle::InvalidInputError)
      expect { described_class.new(model: model, pruning: { planes: 4 }) }.to raise_error(ArgumentError)
      expect { described_class.new(dimension: 4, pruning: true) }.to raise_error(ArgumentError, /late-interaction/)
    end
  end
end
