# frozen_string_literal: true

require "json"
require "timeout"
require "tmpdir"

RSpec.describe Candle::Index do
  dimension = 24

  def vector(seed, size = 24)
    random = Random.new(seed)
    Array.new(size) { random.rand(-1.0..1.0) }
  end

  def cosine(one, other)
    dot = ->(a, b) { a.zip(b).sum { |x, y| x * y } }
    dot.call(one, other) / (Math.sqrt(dot.call(one, one)) * Math.sqrt(dot.call(other, other)))
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

  # Squares of these overflow f32, or vanish in it.
  [3e38, 1e19, 1e-20, 1e-45].each do |size|
    it "finds vectors whose numbers are as large or small as #{size}" do
      vectors = { "east" => [size, 0.0, 0.0], "north" => [0.0, -size, 0.0], "both" => [size, size, 0.0] }
      queries = vectors.merge("plain east" => [1.0, 0.0, 0.0], "plain both" => [1.0, 1.0, 0.0])
      index = described_class.new(dimension: 3).add_all(vectors).add("plain", [1.0, 1.0, 0.0])
      queries.each_value do |query|
        wanted = vectors.merge("plain" => [1.0, 1.0, 0.0]).transform_values { |one| cosine(one, query) }
        [index, described_class.open(index.save("vectors"))].each do |searched|
          found = searched.search(query).to_h { |hit| [hit[:id], hit[:score]] }
          expect(found).to match(wanted.transform_values { |score| be_within(1e-5).of(score) })
        end
      end
    end
  end

  it "draws and walks a graph of such vectors" do
    sizes = [3e37, 1e19, 1.0, 1e-20, 1e-40]
    vectors = (0...2048).to_h { |id| [id, vector(id).map { |number| number * sizes[id % 5] }] }
    index = described_class.new(dimension: 24).add_all(vectors).build_graph
    hits = Array.new(20) do |seed|
      exact = index.search(vector(9000 + seed), exact: true).map { |hit| hit[:id] }
      (index.search(vector(9000 + seed), effort: 200).map { |hit| hit[:id] } & exact).size
    end
    expect(hits.sum).to be >= 190
    found = index.search(vectors[7], top_k: 1).first
    expect(found).to match(id: 7, score: be_within(1e-5).of(1.0))
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

  it "may be used by several threads at once" do
    index = filled(300)
    writer = Thread.new { 200.times { |id| index.add(1000 + id, vector(id)) && index.delete(id) } }
    readers = Array.new(3) { Thread.new { 60.times.map { index.search(vector(3)).first[:score] } } }
    expect(readers.flat_map(&:value)).to all(be_within(1e-5).of(1.0))
    writer.join
    expect(index.size).to eq(300)
  end

  describe "with a graph" do
    # Vectors around a hundred centers, as those of texts are.
    def near(seed)
      random = Random.new(seed)
      vector(random.rand(100)).map { |at| at + random.rand(-0.5..0.5) }
    end

    def drawn(count, dtype: :f32, **options)
      index = described_class.new(dimension: 24, dtype: dtype)
      index.add_all((0...count).map { |id| [id, near(id)] }).build_graph(**options)
    end

    def recall(index, **options)
      queries = Array.new(40) { |seed| near(100_000 + seed) }
      hits = queries.sum do |query|
        least = index.search(query, exact: true).last[:score]
        index.search(query, **options).count { |hit| hit[:score] >= least }
      end
      hits / (10.0 * queries.size)
    end

    %i[f32 int8 binary].each do |dtype|
      it "finds nearly all of the nearest #{dtype} rows, also from its file and when some were deleted and added" do
        index = drawn(4096, dtype: dtype)
        expect(index.graph).to eq(links: 16, size: 4096)
        expect(recall(index)).to be >= 0.95
        (0...4096).step(2) { |id| index.delete(id) }
        expect(recall(index)).to be >= 0.95
        opened = described_class.open(index.save("vectors"))
        expect([opened.size, opened.graph]).to eq([2048, { links: 16, size: 2048 }])
        expect(recall(opened)).to be >= 0.95
        opened.add("new", near(7)).add_all((5000...6000).map { |id| [id, near(id)] })
        expect(opened.search(near(7), top_k: 1).first[:id]).to be(7).or eq("new")
        expect(opened.build_graph.graph[:size]).to eq(2048 + 768)
        expect(recall(opened)).to be >= 0.95
      end
    end

    it "finds more with a larger ef, also by its older name" do
      index = drawn(4096, links: 4, ef: 16)
      expect(recall(index, ef: 10)).to be < recall(index, ef: 100)
      hits = %i[ef effort].map { |name| index.search(near(3), name => 100) }
      expect(hits.first).to eq(hits.last)
      graphs = %i[ef effort].map { |name| File.binread(drawn(600, name => 32).save("by_#{name}")) }
      expect(graphs.first).to eq(graphs.last)
      expect(recall(index, exact: true)).to eq(1.0)
      expect(index.search(near(1), top_k: nil).size).to eq(4096)
    end

    it "draws the same graph with any number of threads" do
      threads = Candle.num_threads
      files = [1, 3].map do |count|
        Candle.num_threads = count
        File.binread(drawn(1024).save("with_#{count}"))
      end
      expect(files.first == files.last).to be(true)
    ensure
      Candle.num_threads = threads
    end

    it "returns only what a filter lets through" do
      index = drawn(4096)
      query = near(100_001)
      [2, 700].each do |step|
        some = (0...4096).step(step)
        exact = index.search(query, among: some, exact: true)
        expect((index.search(query, among: some) & exact).size).to be >= [exact.size, 10].min - 1
      end
      found = index.search(query, top_k: 5) { |id| (id % 10).zero? }.map { |hit| hit[:id] }
      exact = index.search(query, top_k: 5, exact: true) { |id| (id % 10).zero? }.map { |hit| hit[:id] }
      expect((found & exact).size).to be >= 4
      expect(found).to all(satisfy { |id| (id % 10).zero? }).and eq(found.uniq)
    end

    it "reports progress, is searched meanwhile, and keeps what was drawn when it is interrupted" do
      index = described_class.new(dimension: 24).add_all((0...3000).map { |id| [id, near(id)] })
      calls = []
      stop = proc do |done, total|
        calls << [done, total]
        raise Interrupt if calls.size == 2
      end
      expect { index.build_graph(progress: stop) }.to raise_error(Interrupt)
      expect([calls, index.graph[:size]]).to eq([[[256, 3000], [512, 3000]], 512])
      builder = Thread.new { index.build_graph }
      searched = Array.new(50) { |seed| index.search(near(seed), top_k: 1).first[:score] }
      expect(searched).to all(be_within(1e-4).of(1.0))
      expect(builder.value.graph[:size]).to eq(2816)
      slow = described_class.new(dimension: 24).add_all((0...20_000).map { |id| [id, near(id)] })
      expect { Timeout.timeout(0.3) { slow.build_graph(effort: 2000) } }.to raise_error(Timeout::Error)
    end

    # More searches than the pool has threads, while one holds the index and needs the pool.
    it "is searched and added to by many threads while it grows" do
      output, errors, status = run_ruby(<<~RUBY, within: 120)
        random = Random.new(1)
        vectors = Array.new(3000) { Array.new(24) { random.rand - 0.5 } }
        index = Candle::Index.new(dimension: 24).add_all(vectors.each_with_index.map { |vector, id| [id, vector] })
        done = false
        searching = Array.new(2 * Candle.num_threads) do |thread|
          Thread.new do
            turns = 0
            until done
              id = (turns += 1) % 500
              among = thread.even? ? (0...500) : nil
              found = index.search(vectors[id], top_k: 1, among: among, exact: true)
              abort "lost \#{id}" unless found.first[:id] == id
            end
            turns
          end
        end
        adding = Thread.new { (3000..).each { |id| done ? break : index.add(id, Array.new(24) { random.rand - 0.5 }) } }
        2.times { |turn| index.build_graph(links: 8 + turn, effort: 32) }
        done = true
        adding.join
        puts searching.map(&:value).all?(&:positive?)
      RUBY
      expect([output, errors, status.success?]).to eq(["true\n", "", true])
    end

    it "is walked by a forked process" do
      index = drawn(4096)
      wanted = index.search(near(1)).map { |hit| hit[:id] }
      reader, writer = IO.pipe
      pid = fork do
        writer.write(JSON.generate([index.search(near(1)).map { |hit| hit[:id] }, index.build_graph(links: 8).graph]))
        writer.flush
        exit!
      end
      writer.close
      expect(JSON.parse(reader.read)).to eq([wanted, { "links" => 8, "size" => 4096 }])
      Process.wait(pid)
    end

    it "says what is wrong with a graph" do
      index = drawn(300)
      expect { index.build_graph(links: 1) }.to raise_error(Candle::InvalidInputError, /2 to 256 links/)
      expect { index.build_graph(links: nil) }.to raise_error(ArgumentError, /links is missing/)
      expect { index.build_graph(effort: 0) }.to raise_error(ArgumentError, /effort must be a positive Integer/)
      expect { index.build_graph(ef: 0) }.to raise_error(ArgumentError, /ef must be a positive Integer/)
      expect { index.search(near(1), ef: 10, effort: 10) }.to raise_error(ArgumentError, /two names of one option/)
      expect { index.search(near(1), effort: "x") }.to raise_error(ArgumentError, /effort/)
      bytes = File.binread(index.save("vectors"))
      bytes.setbyte(-1, bytes.getbyte(-1) ^ 1)
      File.binwrite("vectors", bytes)
      expect { described_class.open("vectors") }.to raise_error(Candle::CorruptModelError, /not a sound index/)
    end
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

  it "says what to call with a text" do
    index = described_class.new(dimension: 2).add("a", [1.0, 0.0])
    advice = /"hello" is a text, and an index holds vectors: pass model\.embed.*or search with model\.search/
    expect { index.search("hello") }.to raise_error(Candle::InvalidInputError, advice)
    expect { index.add("b", "hello") }.to raise_error(Candle::InvalidInputError, advice)
    expect { index.search("12345678") }.to raise_error(Candle::InvalidInputError, /is a text/)
    floats = [0.5, -2.0].pack("e*")
    expect(index.search(floats)).to eq(index.search(floats.dup.force_encoding("UTF-8")))
    embedder = ServedModels.models["embedder"]
    words = described_class.new(dimension: 32).add("fox", embedder.embed("fox"))
    expect(embedder.search("fox", words).first[:id]).to eq("fox")
  end
end
