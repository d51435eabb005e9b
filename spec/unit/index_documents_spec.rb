# frozen_string_literal: true

require "json"
require "tmpdir"

# Texts, metadata and several kinds of search in one index.
RSpec.describe Candle::Index do
  let(:model) { Candle::EmbeddingModel.from_pretrained(TinyModels.path("bert-sentence"), device: "cpu") }
  let(:sparse) { Candle::SparseEmbeddingModel.from_pretrained(TinyModels.path("splade"), device: "cpu") }
  let(:texts) { { 1 => "the quick brown fox", 2 => "the lazy dog in paris", 3 => "hello world", 4 => "a happy fox" } }

  def ids(found)
    found.map { |hit| hit[:id] }
  end

  describe "of words" do
    reference = JSON.parse(File.read(File.expand_path("../fixtures/bm25.json", __dir__)))

    reference["cases"].group_by { |entry| entry.values_at("method", "k1", "b", "delta") }.each do |settings, cases|
      it "scores as bm25s does with #{settings.join(" ")}" do
        method, k1, b, delta = settings
        index = described_class.new(bm25: { method: method, k1: k1, b: b, delta: delta })
        index.add_all(reference["texts"].each_with_index.map { |text, number| [number, text] })
        cases.each do |entry|
          found = index.search(entry["query"], top_k: nil).to_h { |hit| [hit[:id].to_s, hit[:score]] }
          expect(found.keys).to match_array(entry["scores"].keys)
          entry["scores"].each { |number, score| expect(found[number]).to be_within(1e-5).of(score) }
        end
      end
    end

    it "forgets what is deleted and replaced" do
      index = described_class.new.add_all(texts)
      index.search("fox")
      index.delete(1)
      index.add(2, "the quick fox")
      fresh = described_class.new.add_all(2 => "the quick fox", 3 => texts[3], 4 => texts[4])
      scores = ->(one) { one.search("quick lazy fox").map { |hit| [hit[:id], hit[:score].round(6)] }.sort }
      expect(scores.call(index)).to eq(scores.call(fresh))
      expect([index.size, index.include?(1), index.delete(1)]).to eq([3, false, false])
    end

    it "has no dimension, and says so of vectors" do
      index = described_class.new.add("a", "the fox")
      expect(index.dimension).to be_nil
      expect(index.inspect).to eq("#<Candle::Index 1 texts>")
      expect { index.search([1.0]) }.to raise_error(Candle::InvalidInputError, /no vectors/)
      expect { index.search([1.0], mode: :bm25) }.to raise_error(Candle::InvalidInputError, /text/)
      expect { index.search("fox", mode: :sparse) }.to raise_error(Candle::InvalidInputError, /sparse/)
      expect { described_class.new(bm25: { kk: 1 }) }.to raise_error(ArgumentError, /kk/)
    end
  end

  describe "of metadata" do
    let(:index) do
      described_class.new.add_all([["a", "a fox", { lang: "en", year: 2019, tags: %w[x] }],
                                   ["b", "a fox", { "lang" => "de", "year" => 2021 }],
                                   ["c", "a fox", { lang: "en", year: 2024, nested: { deep: 1 } }], ["d", "a fox"]])
    end

    it "finds only what fulfils all conditions" do
      found = ->(**where) { ids(index.search("fox", where: where)) }
      expect(found.call(lang: "en")).to eq(%w[a c])
      expect(found.call(lang: "en", year: 2020..)).to eq(%w[c])
      expect(found.call(year: 2019...2024)).to eq(%w[a b])
      expect(found.call(lang: %w[de fr])).to eq(%w[b])
      expect(found.call(lang: /\Ad/)).to eq(%w[b])
      expect(found.call(lang: nil)).to eq(%w[d])
      expect(found.call(year: ->(year) { year&.odd? })).to eq(%w[a b])
      expect(ids(index.search("fox", where: { "lang" => "en" }, among: %w[a b]))).to eq(%w[a])
      expect(ids(index.search("fox") { |id| id > "b" })).to eq(%w[c d])
    end

    it "returns it by Symbols, as JSON holds it" do
      expect(index.search("fox", where: { year: 2024 }).first[:metadata])
        .to eq(lang: "en", year: 2024, nested: { deep: 1 })
      expect(index.search("fox", where: { lang: nil }).first[:metadata]).to eq({})
      expect { index.add("e", "x", 3) }.to raise_error(ArgumentError, /metadata/)
      expect { index.search("fox", where: 3) }.to raise_error(ArgumentError, /where/)
    end

    it "filters vectors too" do
      index = described_class.new(dimension: 2)
      index.add(1, [1.0, 0.0], lang: "en").add(2, [0.9, 0.1], lang: "de").add(3, [0.0, 1.0])
      expect(index.search([1.0, 0.0],
                          where: { lang: "de" })).to match([a_hash_including(id: 2, metadata: { lang: "de" })])
      expect(ids(index.search([1.0, 0.0]))).to eq([1, 2, 3])
    end
  end

  describe "with models" do
    it "embeds texts, and finds by vectors, words, sparse vectors and all together" do
      index = described_class.new(model: model, sparse_model: sparse).add_all(texts)
      dense = model.search("lazy dog", texts.values, top_k: 4, prompt_name: "query", document_prompt_name: "document")
                   .map { |hit| hit[:index] + 1 }
      expect(ids(index.search("lazy dog"))).to eq(dense)
      expect(ids(index.search("lazy dog", mode: :bm25))).to eq([2])
      by_weights = sparse.search("lazy dog", texts.values, top_k: 4).map { |hit| hit[:index] + 1 }
      expect(ids(index.search("lazy dog", mode: :sparse))).to eq(by_weights)
      found = index.search("lazy dog", mode: :hybrid, top_k: 4)
      lists = [dense, [2], by_weights]
      sums = Hash.new(0.0)
      lists.each { |list| list.each_with_index { |id, rank| sums[id] += 1.0 / (61 + rank) } }
      found.each { |hit| expect(hit[:score]).to be_within(1e-9).of(sums[hit[:id]]) }
      expect(found.first.keys).to eq(%i[id score text metadata])
      weighted = index.search("lazy dog", mode: :hybrid, fusion: :weighted, weights: { bm25: 100 }, top_k: 1)
      expect(ids(weighted)).to eq([2])
    end

    it "has a reranker sort the best" do
      reranker = Candle::Reranker.from_pretrained(TinyModels.path("bert-reranker"), device: "cpu")
      index = described_class.new(model: model).add_all(texts)
      found = index.search("lazy dog", mode: :hybrid, rerank: reranker, top_k: 2)
      wanted = reranker.rerank("lazy dog", texts.values, top_k: 2)
      expect(found.map { |hit| hit[:text] }).to eq(wanted.map { |hit| hit[:text] })
      found.zip(wanted) { |hit, other| expect(hit[:score]).to be_within(1e-5).of(other[:score]) }
      expect { index.search("dog", rerank: 1) }.to raise_error(ArgumentError, /rerank/)
    end

    it "cuts texts into chunks, which one id stands for" do
      splitter = Candle::TextSplitter.new(model, size: 6)
      text = "the quick fox jumps. the lazy dog is happy. hello world in paris."
      index = described_class.new(model: model, splitter: splitter).add("doc", text, lang: "en").add("other", "a dog")
      found = index.search("paris", mode: :bm25)
      expect(found).to match([a_hash_including(id: "doc", text: "hello world in paris.", chunk: 2,
                                               metadata: { lang: "en" })])
      expect(ids(index.search("dog", among: ["other"], top_k: 9))).to eq(["other"])
      index.add("doc", "short")
      expect(index.size).to eq(2)
      expect([index.delete("doc"), index.size]).to eq([true, 1])
    end

    it "pools the states of the whole text with late chunking" do
      splitter = Candle::TextSplitter.new(model, size: 6)
      text = "the quick fox jumps. the lazy dog is happy."
      late = described_class.new(model: model, splitter: splitter, late_chunking: true).add("doc", text)
      early = described_class.new(model: model, splitter: splitter).add("doc", text)
      scores = ->(index) { index.search("dog").to_h { |hit| [hit[:chunk], hit[:score]] } }
      expect(scores.call(late).keys).to match_array(scores.call(early).keys)
      expect(scores.call(late)[1]).not_to be_within(1e-4).of(scores.call(early)[1])
      expect { described_class.new(model: model, late_chunking: true) }.to raise_error(ArgumentError, /splitter/)
    end

    it "gives a chunk the mean of its tokens' states in the whole text, of length 1" do
      splitter = Candle::TextSplitter.new(model, size: 6)
      text = "The quick fox. The lazy dog, café! Paris."
      index = described_class.new(model: model, splitter: splitter, late_chunking: true, similarity: :dot)
      index.add("doc", text)
      states = model.embeddings(text).to_a.first
      offsets = model.tokenizer.encode_with_offsets(text)[:offsets]
      parts = splitter.split(text)
      expect([parts.size, offsets.size]).to match([be > 2, states.size])
      # What is found by a vector of one 1 is one component.
      components = Array.new(model.dimension) do |at|
        one = Array.new(model.dimension, 0.0).tap { |vector| vector[at] = 1.0 }
        index.search(one, top_k: nil).to_h { |hit| [hit[:chunk], hit[:score]] }
      end
      parts.each_with_index do |part, number|
        own = states.zip(offsets).filter_map do |state, (first, last)|
          state if last > first && (part.start...part.end).cover?(first...last)
        end
        pooled = own.transpose.map { |values| values.sum / own.size }
        length = Math.sqrt(pooled.sum { |value| value**2 })
        expect(own.size).to be_between(2, 6)
        expect([components.map { |found| found[number] }]).to be_near([pooled.map { |value| value / length }], 1e-5)
      end
    end

    it "refuses texts beyond the model's length where chunks are to be pooled from the whole text" do
      splitter = Candle::TextSplitter.new(model, size: 6)
      index = described_class.new(model: model, splitter: splitter, late_chunking: true).add(1, "the dog. " * 4)
      before = index.size
      text = "the quick fox jumps. " * 20
      count = model.count_tokens(text)
      expect { index.add(1, text) }.to raise_error(Candle::InvalidInputError, /#{count} tokens, .* reads 16 at once/)
      expect([index.size, before]).to eq([before, 2])
      described_class.new(model: model, splitter: splitter).add(1, text)
    end

    it "adds one after the other what has one id, and keeps what can't be replaced" do
      index = described_class.new(model: model).add_all([[1, "a fox"], [2, "a dog"], [1, "a wolf"]])
      expect(index.search("fox dog wolf", mode: :bm25).map { |hit| hit[:text] }).to match_array(["a dog", "a wolf"])
      expect { index.add(1, [1.0, 2.0]) }.to raise_error(Candle::InvalidInputError)
      expect(ids(index.search("wolf", mode: :bm25))).to eq([1])
      index.add(1, Array.new(32, 1.0))
      expect([index.size, index.search("wolf", mode: :bm25)]).to eq([2, []])
    end

    it "leaves out texts that are there, where it is to" do
      index = described_class.new(deduplicate: true)
      index.add_all([[1, "a fox"], [2, "a fox"], [3, "a dog"]]).add(4, "a dog").add(1, "a fox", lang: "en")
      expect(index.size).to eq(2)
      expect(index.search("fox").first[:metadata]).to eq(lang: "en")
    end

    it "compares token by token with a late-interaction model, also from its file" do
      late = Candle::LateInteractionModel.from_pretrained(TinyModels.path("colbert"), device: "cpu")
      index = described_class.new(model: late).add_all(texts)
      wanted = late.rerank("lazy dog", texts.values)
      check = lambda do |found|
        expect(found.map { |hit| hit[:text] }).to eq(wanted.map { |hit| hit[:text] })
        found.zip(wanted) { |hit, other| expect(hit[:score]).to be_within(1e-5).of(other[:score]) }
      end
      check.call(index.search("lazy dog"))
      expect(index.search("lazy dog") { |id| id > 2 }.map { |hit| hit[:id] }).to match_array([3, 4])
      expect(index.search("lazy dog", among: [1]).map { |hit| hit[:id] }).to eq([1])
      expect(index.search("lazy dog", mode: :hybrid, top_k: 4).size).to eq(4)
      Dir.mktmpdir do |folder|
        path = File.join(folder, "x.index")
        index.save(path)
        writer = described_class.open(path, model: late, write: true)
        check.call(writer.search("lazy dog"))
        writer.add(5, "lazy lazy dog").close
        expect(described_class.open(path, model: late).search("lazy dog", top_k: 9).size).to eq(5)
      end
    end

    it "takes a sparse model alone, and the source of a model" do
      index = described_class.new(model: TinyModels.path("splade")).add_all(texts)
      expect(index.search("lazy dog").first[:text]).to eq(sparse.search("lazy dog", texts.values,
                                                                        top_k: 1).first[:text])
      expect { described_class.new(model: 5) }.to raise_error(ArgumentError, /model/)
    end
  end

  describe "in a file" do
    around { |example| Dir.mktmpdir { |folder| Dir.chdir(folder) { example.run } } }

    before { model && sparse }

    it "keeps texts, metadata, vectors and weights" do
      index = described_class.new(model: model, sparse_model: sparse, dtype: :int8).add_all(texts)
      index.add(5, "ü 東京 fox", lang: "de").delete(3)
      index.save("x.index")
      opened = described_class.open("x.index", model: model, sparse_model: sparse)
      %i[dense bm25 sparse hybrid].each do |mode|
        expect(opened.search("fox", mode: mode, top_k: 9)).to eq(index.search("fox", mode: mode, top_k: 9))
      end
      expect([opened.size, opened.dtype]).to eq([4, :int8])
      expect(Dir.children(".")).to eq(["x.index"])
    end

    it "is written to by one process at a time, and read by others meanwhile" do
      described_class.new.add("a", "a fox").save("x.index")
      writer = described_class.open("x.index", write: true)
      reader = described_class.open("x.index")
      writer.add("b", "a dog", year: 1)
      writer.delete("a")
      expect(described_class.open("x.index").size).to eq(1)
      writer.sync
      expect(reader.size).to eq(1)
      expect(ids(reader.refresh.search("dog fox"))).to eq(["b"])
      expect { described_class.open("x.index", write: true) }.to raise_error(Candle::InvalidInputError, /one writer/)
      writer.compact
      writer.add("c", "a wolf").close
      expect(ids(reader.refresh.search("dog wolf"))).to match_array(%w[b c])
      expect { reader.sync }.to raise_error(Candle::InvalidInputError, /writing/)
      expect(described_class.open("x.index", write: true).close).to be_nil
    end

    it "appends to files of vectors alone" do
      described_class.new(dimension: 2).add(1, [1.0, 0.0]).save("x.index")
      writer = described_class.open("x.index", write: true)
      writer.add(2, [0.0, 1.0]).sync.add(3, [0.5, 0.5]).close
      expect(ids(described_class.open("x.index").search([0.0, 1.0]))).to eq([2, 3, 1])
    end

    it "leaves out a batch that was cut short, whatever is left of it" do
      described_class.new.add("a", "a fox").save("x.index")
      writer = described_class.open("x.index", write: true)
      whole = File.size("x.index")
      writer.add("b", "a dog").close
      bytes = File.binread("x.index")
      (whole...bytes.bytesize).step(7) do |size|
        File.binwrite("y.index", bytes[0, size])
        expect(described_class.open("y.index").size).to eq(1)
        again = described_class.open("y.index", write: true)
        again.add("c", "a wolf").close
        expect(ids(described_class.open("y.index").search("wolf dog"))).to eq(["c"])
      end
    end

    # A child adds and syncs, and is killed at any moment; what it said to have synced is there.
    it "loses nothing that was synced when a process is killed" do
      described_class.new.add(0, "document 0").save("x.index")
      library = File.expand_path("../../lib", __dir__)
      script = <<~RUBY
        require "candle"
        index = Candle::Index.open("x.index", write: true)
        number = index.size
        loop do
          index.add_all((number...number + 5).map { |id| [id, "document \#{id} of many", { half: id / 2 }] })
          index.sync
          number += 5
          $stdout.syswrite("\#{number}\\n")
          index.compact if rand(6).zero?
        end
      RUBY
      random = Random.new(3)
      6.times do
        output = IO.popen([RbConfig.ruby, "-I", library, "-e", script], "r")
        said = output.gets.to_i
        sleep(random.rand(0.0..0.12))
        Process.kill(:KILL, output.pid)
        said = [said, *output.read.lines.grep(/\n\z/).map(&:to_i)].max
        output.close
        index = described_class.open("x.index")
        expect(index.size).to be >= said
        hits = index.search("document", top_k: nil)
        expect(ids(hits)).to match_array((0...index.size).to_a)
        expect(hits).to all(satisfy { |hit| hit[:text].start_with?("document #{hit[:id]}") })
      end
      described_class.open("x.index", write: true).compact.close
      expect(Dir.children(".")).to eq(["x.index"])
    end
  end
end
