# frozen_string_literal: true

require "fileutils"
require "json"
require "tmpdir"

# The less usual modules of sentence-transformers, and tasks.
RSpec.describe Candle::EmbeddingModel do
  def load(name, **options)
    path = File.directory?(name) ? name : TinyModels.path(name)
    described_class.from_pretrained(path, device: "cpu", **options)
  end

  def texts(name)
    TinyModels.record(name)["texts"]
  end

  # A copy of a fixture, changed by the block.
  def changed(name)
    Dir.mktmpdir do |folder|
      FileUtils.cp_r("#{TinyModels.path(name)}/.", folder)
      yield folder
    end
  end

  def rewrite(path)
    settings = JSON.parse(File.read(path))
    File.write(path, JSON.generate(yield(settings) || settings))
  end

  { "words-lstm" => :dot, "words-cnn" => :manhattan, "words-weights" => :euclidean, "bag-of-words" => :cosine,
    "bert-weights" => :cosine, "words-normalized" => :cosine }.each do |name, function|
    describe name do
      let(:model) { load(name) }

      it "has the vectors of the reference, alone as together" do
        rows = TinyModels.rows(name, "default")
        expect(model.embed(texts(name), normalize: false)).to be_near(rows)
        expect(texts(name).map { |text| model.embed(text) }).to be_near(rows)
        expect(model.dimension).to eq(rows.first.size)
      end

      it "compares vectors as the reference does" do
        expect(model.similarity_function).to eq(function)
        expected = TinyModels.rows(name, "similarity").first
        found = texts(name).map { |text| model.similarity(texts(name).first, text) }
        expect([found]).to be_near([expected], 1e-3)
        best = model.search(texts(name)[1], texts(name), top_k: nil).map { |hit| hit[:score] }
        expect([best]).to be_near([TinyModels.rows(name, "similarity")[1].sort.reverse], 1e-3)
      end
    end
  end

  it "counts words, and gives the states of words" do
    model = load("words-lstm")
    expect(model.count_tokens("the fox, and Paris? no")).to eq(3)
    expect(model.embeddings("the fox").shape).to eq([1, 2, 10])
    expect { load("bag-of-words").embeddings("fox") }.to raise_error(Candle::InvalidInputError, /token states/)
  end

  describe "routes" do
    let(:model) { load("sentence-router") }

    it "reads queries and documents by their routes and prompts" do
      expect(model.tasks).to eq(%w[query document])
      queries = TinyModels.rows("sentence-router", "query")
      expect(model.embed(texts("sentence-router"), task: :query)).to be_near(queries)
      documents = TinyModels.rows("sentence-router", "document")
      expect(model.embed(texts("sentence-router"), task: "document")).to be_near(documents)
      expect(model.embed(texts("sentence-router"))).to be_near(TinyModels.rows("sentence-router", "default"))
    end

    it "are what an index uses" do
      index = Candle::Index.new(model: model)
      index.add("a", "the lazy dog")
      expected = model.similarity(model.embed("hello", task: :query), model.embed("the lazy dog", task: :document))
      expect(index.search("hello", mode: :dense).first[:score]).to be_within(1e-5).of(expected)
    end

    it "may be mapped by task, and may need one" do
      mapped = load("sentence-router-mapped")
      %w[search deep].each do |task|
        found = mapped.embed(texts("sentence-router-mapped"), task: task)
        expect(found).to be_near(TinyModels.rows("sentence-router-mapped", task))
      end
      expect { mapped.embed("a") }.to raise_error(Candle::InvalidInputError, /without a task.*light, heavy/)
      expect { mapped.embed("a", task: :other) }.to raise_error(Candle::InvalidInputError, /"other"/)
    end

    it "must exist" do
      changed("sentence-router") do |folder|
        rewrite("#{folder}/router_config.json") do |config|
          config.merge("parameters" => { "default_route" => "none" })
        end
        expect { load(folder) }.to raise_error(Candle::CorruptModelError, /no route "none"/)
      end
    end
  end

  %w[jina-v3-tasks jina-v3-folders].each do |name|
    describe name do
      let(:model) { load(name) }

      it "has the vectors of each task" do
        expect(model.embed(texts(name))).to be_near(TinyModels.rows(name, "default"))
        expect(model.tasks).to eq(TinyModels.record(name)["tasks"])
        model.tasks.each do |task|
          expect(model.embed(texts(name), task: task)).to be_near(TinyModels.rows(name, task))
        end
        expect(model.embed(texts(name), task: :query)).to be_near(TinyModels.rows(name, "retrieval.query"))
      end

      it "refuses others" do
        expect { model.embed("a", task: "chat") }.to raise_error(Candle::InvalidInputError, /chat.*retrieval\.query/)
      end
    end
  end

  it "takes the tasks of queries and documents for any model, and no other" do
    model = load("bert-sentence")
    expect(model.tasks).to eq([])
    expect(model.embed("fox", task: :query)).to eq(model.embed("fox", prompt_name: :query))
    expect { model.embed("fox", task: "retrieval.query") }.to raise_error(Candle::InvalidInputError, /unknown task/)
  end

  it "refuses adapters that do not fit" do
    changed("jina-v3-tasks") do |folder|
      rewrite("#{folder}/config.json") { |config| config.merge("lora_adaptations" => Array.new(9) { |at| "t#{at}" }) }
      expect { load(folder) }.to raise_error(Candle::CorruptModelError, /do not fit/)
    end
    changed("jina-v3-folders") do |folder|
      rewrite("#{folder}/retrieval_query/adapter_config.json") { |config| config.merge("use_dora" => true) }
      expect { load(folder) }.to raise_error(Candle::UnsupportedModelError, /use_dora/)
    end
  end

  it "keeps as many dimensions as truncate_dim says" do
    changed("bert-sentence") do |folder|
      rewrite("#{folder}/config_sentence_transformers.json") { |config| config.merge("truncate_dim" => 8) }
      model = load(folder)
      expect(model.dimension).to eq(8)
      expect(model.embed("fox")).to eq(load("bert-sentence").embed("fox", dimensions: 8))
      expect(model.embed("fox", dimensions: 20).size).to eq(20)
    end
  end

  it "names modules and similarities that it does not know" do
    changed("words-cnn") do |folder|
      rewrite("#{folder}/1_CNN/cnn_config.json") { |config| config.merge("stride_sizes" => [1, 2, 1]) }
      expect { load(folder) }.to raise_error(Candle::UnsupportedModelError, /stride_sizes/)
    end
    changed("bert-sentence") do |folder|
      settings = "#{folder}/config_sentence_transformers.json"
      rewrite(settings) { |config| config.merge("similarity_fn_name" => "hamming") }
      expect { load(folder) }.to raise_error(Candle::UnsupportedModelError, /hamming/)
    end
  end
end
