# frozen_string_literal: true

RSpec.describe Candle::ModelRegistry do
  let(:source) { TinyModels.path("bert-sentence") }

  def loads
    count = 0
    allow(Candle::EmbeddingModel).to receive(:from_pretrained).and_wrap_original do |original, *arguments, **options|
      count += 1
      original.call(*arguments, **options)
    end
    yield
    count
  end

  it "loads a model once, whatever the number of threads" do
    registry = described_class.new
    models = nil
    count = loads do
      models = Array.new(8) { Thread.new { registry.use(source) { |model| model.embed("fox") && model } } }.map(&:value)
    end
    expect(count).to eq(1)
    expect(models.uniq.size).to eq(1)
  end

  it "tells models apart by source, class and options" do
    registry = described_class.new
    first = registry.use(source) { |model| model }
    expect(registry.use(source, max_length: 8) { |model| model }).not_to equal(first)
    expect(registry.use(TinyModels.path("bert-reranker"), klass: Candle::Reranker) { |model| model })
      .to be_a(Candle::Reranker)
    expect(registry.use(source) { |model| model }).to equal(first)
  end

  it "counts uses, and holds a model only while it is used" do
    registry = described_class.new(idle_seconds: 0)
    registry.use(source) { expect(registry.uses).to eq(source => 1) }
    registry.use(TinyModels.path("bert")) { expect(registry.uses.keys).to eq([TinyModels.path("bert")]) }
  end

  it "keeps what was preloaded, ready to be used, until it is released" do
    registry = described_class.new(idle_seconds: 0)
    model = registry.preload(source)
    registry.use(TinyModels.path("bert")) { nil }
    expect(registry.uses).to include(source => 0)
    expect(loads { registry.use(source) { |found| expect(found).to equal(model) } }).to eq(0)
    registry.release
    expect(registry.uses).to be_empty
  end

  it "lets the next caller try again after a failure" do
    registry = described_class.new
    2.times { expect { registry.use("/nowhere/at/all") { nil } }.to raise_error(Candle::ModelNotFoundError) }
    expect(registry.uses).to be_empty
  end

  it "takes models on the CPU along into a forked process" do
    registry = described_class.new
    registry.preload(source)
    child = fork do
      same = loads { registry.use(source) { |model| model.embed("fox") } }.zero?
      exit!(same && registry.uses == { source => 0 })
    end
    expect(Process.wait2(child).last).to be_success
  end
end
