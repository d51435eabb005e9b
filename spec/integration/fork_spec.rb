# frozen_string_literal: true

# Forked processes, as Puma and Unicorn make them, compute with what the parent loaded.
RSpec.describe "Forking", if: Process.respond_to?(:fork) do
  let(:matrix) { Candle::Tensor.ones([600, 600]) }

  # Long enough to be spread over the pool.
  def compute
    product = matrix.matmul(matrix)
    product.log.exp.sum.item.round(-4) == 600**3 && (product + product).sqrt.shape == [600, 600]
  end

  # @return [Integer] the process id of a child that ends with 0 when the block is true in time
  def child
    fork do
      Thread.new { sleep(60) && exit!(9) }
      exit!(yield ? 0 : 1)
    end
  end

  def statuses(pids)
    pids.map { |pid| Process.wait2(pid).last.exitstatus }
  end

  before { expect(compute).to be(true) }

  it "leaves many children able to compute in parallel" do
    expect(statuses(Array.new(6) { child { compute } })).to all(eq(0))
    expect(compute).to be(true)
  end

  it "leaves grandchildren able to compute" do
    pid = child { compute && statuses([child { compute }]) == [0] }
    expect(statuses([pid])).to eq([0])
  end

  it "works while other threads compute" do
    busy = Array.new(2) { Thread.new { loop { compute } } }
    sleep 0.2
    expect(statuses(Array.new(6) { child { compute } })).to all(eq(0))
  ensure
    busy.each { |thread| thread.kill.join }
  end

  it "works from several threads at once" do
    pids = Array.new(4) { Thread.new { child { compute } } }.map(&:value)
    expect(statuses(pids)).to all(eq(0))
  end

  # One text is judged without a batch: its spans and pairs alone go over the pool.
  it "leaves extractors able to judge a single text" do
    Dir.mktmpdir do |folder|
      source = File.expand_path("../fixtures/seeded_extractors/relex-gat", __dir__)
      FileUtils.cp(Dir[File.join(source, "*.json")], folder)
      weights = JSON.parse(File.read(File.join(source, "tensors.json"), encoding: "UTF-8"))
      File.binwrite(File.join(folder, "model.safetensors"), SeededModels.safetensors(weights))
      tiny = %w[gliner gliner2].map { |name| TinyModels.path(name) }
      models = [folder, *tiny].map { |path| Candle::GLiNER.from_pretrained(path, device: "cpu") }
      options = { labels: %w[animal city], threshold: 0 }
      related = options.merge(relations: ["lives in"], relation_threshold: 0, adjacency_threshold: 0)
      asked = models.zip([related, options, options])
      found = lambda do
        asked.map { |model, wanted| model.extract("the quick dog live in paris", **wanted) }
      end
      before = found.call
      expect(before.first[:relations]).not_to be_empty
      expect(statuses([child { found.call == before }])).to eq([0])
    end
  end

  it "draws other random numbers in each child" do
    draws = Array.new(3) do
      reader, writer = IO.pipe
      pid = fork do
        writer.write(Candle::Tensor.rand([8]).to_packed)
        writer.close
        exit!(0)
      end
      writer.close
      reader.read.tap { Process.wait(pid) }
    end
    expect(draws.uniq.size).to eq(3)
  end
end
