# frozen_string_literal: true

require "fileutils"
require "tmpdir"

# Run by `rake metal:specs` on an extension that is built on the software device.
RSpec.describe "A Metal device" do
  let(:bert) { TinyModels.path("bert-sentence") }
  let(:llama) { TinyModels.path("decoders/llama") }
  let(:greedy) { Candle::GenerationConfig.deterministic(max_length: 64) }

  it "is found, is the best, and is named in reports" do
    expect(Candle::Device.available_devices).to eq(["cpu", "metal:0"])
    expect(Candle::Device.best.to_s).to eq("metal:0")
    expect(Candle.build_info[:metal]).to be(true)
    report = Candle::EmbeddingModel.from_pretrained(bert).device_report
    expect(report).to include(requested: "best", actual: "metal:0", fallbacks: [])
    expect(report[:kernels].values).to all(start_with("metal"))
  end

  it "is compared with the CPU when a model loads" do
    models = { Candle::EmbeddingModel => bert, Candle::Reranker => TinyModels.path("bert-reranker"),
               Candle::NER => TinyModels.path("bert-token"), Candle::LLM => llama }
    models.each do |klass, path|
      expect(klass.from_pretrained(path, device: "metal").model_info[:verified]).to be(true), klass.name
    end
  end

  it "takes a model that create_with_best_device makes" do
    model = Candle::DeviceUtils.create_with_best_device(Candle::EmbeddingModel, :embedding_model,
                                                        strict: true, model_path: bert)
    expect(model.device.to_s).to eq("metal:0")
  end

  it "embeds texts of mixed lengths as the CPU does, in every type" do
    texts = ["a", "two words", "a somewhat longer text about candles and gems " * 3, "", "x " * 40]
    want = Candle::EmbeddingModel.from_pretrained(bert, device: "cpu").embed(texts)
    { f32: 1e-5, f16: 5e-3, bf16: 5e-2 }.each do |dtype, tolerance|
      model = Candle::EmbeddingModel.from_pretrained(bert, device: "metal", dtype:)
      expect(model.embed(texts)).to be_near(want, tolerance), dtype.to_s
      expect(model.embed([])).to eq([])
    end
  end

  it "generates 64 tokens as the CPU does, for every decoder" do
    Dir[File.join(TinyModels.path("decoders"), "*")].select { |path| File.directory?(path) }.each do |path|
      texts = %w[cpu metal].map do |device|
        Candle::LLM.from_pretrained(path, device:, dtype: :f32).generate("the quick brown", config: greedy)
      end
      expect(texts.last).to eq(texts.first), path
    end
  end

  it "keeps quantized what the CPU keeps quantized" do
    quantized = File.expand_path("../../../spec/fixtures/quantized", __dir__)
    tokenizer = File.join(quantized, "../tiny/decoders/llama/tokenizer.json")
    Dir.mktmpdir do |directory|
      %w[gptq bitsandbytes fp8 fp8_stacks hqq mlx modelopt].each do |name|
        path = File.join(directory, name)
        FileUtils.cp_r(File.join(quantized, name), path)
        FileUtils.cp(tokenizer, path)
        reports = %w[cpu metal].map do |device|
          kernels = Candle::LLM.from_pretrained(path, device:, dtype: :f32).device_report[:kernels]
          [kernels["linear"].split(", ").map { |kernel| kernel.split.last }.sort, kernels["expanded_weights"]]
        end
        expect(reports.last).to eq(reports.first), name
      end
    end
  end

  it "keeps a session, shared prefixes and a batch apart" do
    cpu, metal = %w[cpu metal].map { |device| Candle::LLM.from_pretrained(llama, device:, dtype: :f32) }
    prompts = ["the quick brown fox", "the quick brown dog jumps over", "a"]
    [cpu, metal].each { |model| prompts.each { |prompt| model.generate(prompt, config: greedy) } }
    expect(prompts.map { |prompt| metal.generate(prompt, config: greedy) })
      .to eq(prompts.map { |prompt| cpu.generate(prompt, config: greedy) })
  end

  it "computes in eight threads at once" do
    model = Candle::EmbeddingModel.from_pretrained(bert, device: "metal")
    texts = Array.new(8) { |i| "text number #{i} " * (i + 1) }
    want = texts.map { |text| model.embed(text) }
    got = texts.map { |text| Thread.new { Array.new(3) { model.embed(text) } } }.map(&:value)
    got.zip(want).each { |answers, wanted| expect(answers).to all(be_near(wanted, 1e-6)) }
  end

  it "refuses a forked child" do
    model = Candle::EmbeddingModel.from_pretrained(bert, device: "metal")
    reader, writer = IO.pipe
    pid = fork do
      model.embed("a")
    rescue Candle::DeviceError => e
      writer.write(e.message)
    ensure
      writer.close
      exit!(0)
    end
    writer.close
    expect(reader.read).to match(/metal:0 was used before this process was forked/)
    Process.wait(pid)
    expect(model.embed("a")).not_to be_empty
  end

  it "gives memory back when a model is closed" do
    model = Candle::EmbeddingModel.from_pretrained(bert, device: "metal")
    model.close
    expect { model.embed("a") }.to raise_error(Candle::Error)
  end

  it "says when memory runs out, and goes on" do
    expect { Candle::Tensor.zeros([1 << 20, 1 << 20], device: "metal") }.to raise_error(Candle::OutOfMemoryError)
    expect(Candle::Tensor.ones([4], device: "metal").sum.item).to eq(4.0)
  end

  it "has tensors without elements" do
    empty = Candle::Tensor.zeros([0, 3], device: "metal")
    expect([empty.shape, empty.to_a]).to eq([[0, 3], []])
    expect(Candle::Tensor.new([], :f32, device: "metal").to_a).to eq([])
    expect((empty + empty).to_a).to eq([])
  end
end
