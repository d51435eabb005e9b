# frozen_string_literal: true

require "pathname"
require "tmpdir"

# Images of pages and Tensors of tokens in an index, found by MaxSim.
RSpec.describe Candle::Index do
  around { |example| Dir.mktmpdir { |folder| Dir.chdir(folder) { example.run } } }

  let(:model) { Candle::LateInteractionModel.from_pretrained(TinyModels.path("colqwen2"), device: "cpu") }
  let(:pictures) do
    %w[photo.png flower.png narrow-420.jpg palette.png].map do |name|
      File.expand_path("../fixtures/images/#{name}", __dir__)
    end
  end
  let(:pages) { pictures.map { |path| model.embed_image(path) } }
  let(:queries) { ["what is the lazy dog?", "hello world", "paris"] }

  def paged(**options)
    described_class.new(model: model, **options).tap do |index|
      pages.each_with_index { |page, number| index.add("page #{number}", page, { number: number }) }
    end
  end

  # By MaxSim, written out.
  def max_sim(query, page)
    page = page.to_a
    model.embed_query(query).to_a.sum do |token|
      page.map { |patch| token.zip(patch).sum { |one, other| one * other } }.max
    end
  end

  def expect_found(index, numbers = pages.each_index.to_a, **options)
    queries.each do |query|
      scores = numbers.to_h { |number| [number, max_sim(query, pages[number])] }
      found = index.search(query, top_k: 9, **options)
      expect(found.map { |hit| hit[:metadata][:number] }).to eq(scores.keys.sort_by { |number| -scores[number] })
      found.each do |hit|
        number = hit[:metadata][:number]
        expect(hit).to match(id: "page #{number}", score: be_within(1e-4).of(scores[number]), text: nil,
                             metadata: { number: number })
      end
    end
  end

  it "finds Tensors of tokens by texts" do
    index = paged
    expect_found(index)
    expect(index.search(model.embed_query("paris")).map { |hit| hit[:id] })
      .to eq(index.search("paris").map { |hit| hit[:id] })
    expect([index.size, index.include?("page 2"), index.include?("page 9")]).to eq([4, true, false])
    expect(index.search("paris", where: { number: 2.. }).map { |hit| hit[:id] }).to contain_exactly("page 2", "page 3")
    expect(index.search("paris", mode: :hybrid, among: ["page 1"]).map { |hit| hit[:id] }).to eq(["page 1"])
    expect(index.search("paris", mode: :bm25)).to eq([])
    expect([index.delete("page 1"), index.size]).to eq([true, 3])
    expect_found(index, [0, 2, 3])
    index.add("page 1", pages[1], { number: 1 }).add("page 0", pages[0], { number: 0 })
    expect_found(index)
  end

  it "embeds images, which are an Image, a Pathname, an IO or bytes; a String with a path is a text" do
    index = described_class.new(model: model)
    File.open(pictures[2], "rb") do |file|
      index.add_all([["page 0", Candle::Image.open(pictures[0]), { number: 0 }],
                     ["page 1", Pathname(pictures[1]), { number: 1 }], ["page 2", file, { number: 2 }],
                     ["page 3", File.binread(pictures[3]), { number: 3 }]])
    end
    expect_found(index)
    expect { index.add(1, pictures[0]) }.to raise_error(Candle::InvalidInputError, /embed_image/)
    colbert = Candle::LateInteractionModel.from_pretrained(TinyModels.path("colbert"), device: "cpu")
    expect { described_class.new(model: colbert).add(1, Pathname(pictures[0])) }
      .to raise_error(Candle::InvalidInputError, /texts only/)
  end

  it "keeps them in its file, and appends, deletes and compacts" do
    paged.save("x.index")
    expect_found(described_class.open("x.index", model: model))
    writer = described_class.open("x.index", model: model, write: true)
    reader = described_class.open("x.index", model: model)
    writer.delete("page 0")
    writer.add("page 3", pages[0]).add("page 3", pages[3], { number: 3 }).sync
    expect_found(reader.refresh, [1, 2, 3])
    writer.add("page 0", Candle::Image.open(pictures[0]), { number: 0 }).sync
    expect_found(reader.refresh)
    expect_found(writer.compact)
    writer.close
    expect_found(reader.refresh)
    expect_found(described_class.open("x.index", model: model))
  end

  it "is begun by a writer of an empty index, and keeps pages without metadata" do
    described_class.new(model: model).save("x.index")
    writer = described_class.open("x.index", model: model, write: true)
    writer.add(1, pages[0]).add(2, pages[1]).close
    found = described_class.open("x.index", model: model).search("hello world")
    expect(found.map { |hit| hit[:id] }).to match_array([1, 2])
    expect(found.first).to include(text: nil, metadata: {})
  end

  it "finds them by vectors of fixed size too, from a file that others append to" do
    index = paged(pruning: { repetitions: 4, bits: 2, projection: 8 })
    expect_found(index)
    index.save("x.index")
    writer = described_class.open("x.index", model: model, write: true)
    expect_found(writer)
    writer.delete("page 2")
    writer.add("page 1", pages[1], { number: 1 }).close
    reader = described_class.open("x.index", model: model)
    [writer, reader].each do |one|
      expect_found(one, [0, 1, 3])
      expect_found(one, [0, 1, 3], exact: true)
    end
  end

  it "takes texts and Tensors beside one another" do
    colbert = Candle::LateInteractionModel.from_pretrained(TinyModels.path("colbert"), device: "cpu")
    index = described_class.new(model: colbert).add(1, "the lazy dog").add(2, colbert.embed_document("hello world"))
    index.save("x.index")
    [index, described_class.open("x.index", model: colbert)].each do |one|
      found = one.search("lazy dogs")
      expect(found.map { |hit| hit[:text] }).to match_array(["the lazy dog", nil])
      wanted = colbert.rerank("lazy dogs", ["the lazy dog", "hello world"]).map { |hit| hit[:score] }
      found.zip(wanted) { |hit, score| expect(hit[:score]).to be_within(1e-5).of(score) }
      expect(one.search("lazy dogs", mode: :bm25).map { |hit| hit[:id] }).to eq([1])
    end
  end

  it "refuses what has other vectors" do
    index = paged
    [[Candle::Tensor.zeros([3, 7]), /\[tokens, 8\], not of shape \[3, 7\]/], [Candle::Tensor.zeros([8]), /shape \[8\]/],
     [Candle::Tensor.new([[Float::NAN] * 8]), /finite/],
     [Candle::Tensor.new([([0.0] * 7) + [Float::INFINITY]]), /finite/],
     [[1.0] * 8, /takes texts, images and Tensors of shape \[tokens, 8\]/], [[1.0].pack("e"), /takes texts/],
     [5, /takes texts/]].each do |item, message|
      expect { index.add("page 0", item) }.to raise_error(Candle::InvalidInputError, message)
    end
    expect_found(index)
    index.save("x.index")
    colbert = Candle::LateInteractionModel.from_pretrained(TinyModels.path("colbert"), device: "cpu")
    expect { described_class.open("x.index", model: colbert) }
      .to raise_error(Candle::InvalidInputError, /vectors of 8 numbers for tokens, and the model makes 16/)
    expect { described_class.new(dimension: 8).add(1, pages[0]) }.to raise_error(Candle::InvalidInputError)
  end
end
