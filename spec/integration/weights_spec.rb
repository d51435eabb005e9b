# frozen_string_literal: true

require "fileutils"
require "json"
require "pathname"
require "tmpdir"

RSpec.describe Candle::Weights do
  def fixture(name)
    File.expand_path("../fixtures/weights/#{name}", __dir__)
  end

  # A safetensors file of f32 vectors, written by Ruby.
  def safetensors(tensors)
    data = "".b
    header = tensors.to_h do |name, values|
      start = data.bytesize
      data << values.pack("e*")
      [name, { dtype: "F32", shape: [values.size], data_offsets: [start, data.bytesize] }]
    end
    json = JSON.generate(header)
    [json.bytesize].pack("Q<") + json + data
  end

  around do |example|
    Dir.mktmpdir { |directory| @directory = directory and example.run }
  end

  def write(name, bytes)
    File.join(@directory, name).tap { |path| File.binwrite(path, bytes) }
  end

  it "reads what Ruby packed" do
    weights = described_class.open(Pathname(write("model.safetensors", safetensors("a" => [1.5, -2.0], "b" => [3.0]))))
    expect(weights.names).to eq(%w[a b])
    expect(weights.tensor("a", device: "cpu").values).to eq([1.5, -2.0])
    expect(weights.tensor(:b, device: :cpu, dtype: :f16).dtype).to eq(:f16)
    expect(weights.info("a")).to eq(shape: [2], dtype: :f32, bytes: 8, file: weights.files.first)
    expect(weights.info("c")).to be_nil
    expect(weights.key?("b")).to be(true)
    expect(weights.map { |name, info| [name, info[:shape]] }).to eq([["a", [2]], ["b", [1]]])
    expect(weights.inspect).to eq("#<Candle::Weights 2 tensors in model.safetensors>")
  end

  it "reads the same tensors from safetensors and PyTorch files" do
    [fixture("dense.safetensors"), fixture("pytorch_model.bin")].each do |path|
      weights = described_class.open(path)
      %w[f64 f32 f16 bf16 i64 i32 i16 i8].each do |kind|
        values = weights.tensor("kind.#{kind}", device: "cpu", dtype: :f32).to_a
        expect(values).to eq([[-3.0, -2.0, -1.0], [0.0, 1.0, 2.0]])
      end
    end
  end

  it "expands the blocks of a GGUF file and shows its metadata" do
    weights = described_class.open(fixture("blocks.gguf"))
    expect(weights.info("q4_k")).to include(shape: [2, 256], dtype: :q4_k, bytes: 288)
    expected = weights.tensor("q4_k.expected", device: "cpu").values
    weights.tensor("q4_k", device: "cpu").values.zip(expected) { |a, b| expect(a).to be_within(1e-4).of(b) }
    expect(weights.metadata).to include(
      "general.architecture" => "test", "kinds.u64" => (2**64) - 1, "kinds.i8" => -128, "kinds.f64" => 0.1,
      "kinds.bool" => true, "kinds.string" => "grüße", "kinds.strings" => ["a", "", "▁b"],
      "kinds.nested" => [[1, 2], [3]]
    )
  end

  it "opens a directory, an index and its shards" do
    shards = %w[model-00001-of-00002.safetensors model-00002-of-00002.safetensors]
    write(shards[0], safetensors("a" => [1.0]))
    write(shards[1], safetensors("b" => [2.0]))
    index = write("model.safetensors.index.json", JSON.generate(weight_map: { a: shards[0], b: shards[1] }))
    [@directory, index].each do |path|
      weights = described_class.open(path)
      expect(weights.names).to eq(%w[a b])
      expect(weights.files.map { |file| File.basename(file) }).to eq(shards)
    end
  end

  it "names the missing tensor, the file and the nearest names" do
    weights = described_class.open(fixture("dense.safetensors"))
    expect { weights.tensor("kind.f31") }
      .to raise_error(Candle::CorruptModelError, /"kind\.f31".*dense\.safetensors.*kind\.f32/m)
  end

  it "says which path does not exist" do
    expect { described_class.open("/nowhere/model.gguf") }
      .to raise_error(Candle::ModelNotFoundError, %r{/nowhere/model\.gguf})
  end

  it "refuses files cut at any length, naming them" do
    %w[dense.safetensors blocks.gguf pytorch_model.bin].each do |name|
      whole = File.binread(fixture(name))
      [0, 1, 7, 8, 100, whole.bytesize / 2, whole.bytesize - 33].each do |length|
        path = write(name, whole.byteslice(0, length))
        expect { described_class.open(path) }.to raise_error(Candle::CorruptModelError, /#{Regexp.escape(name)}/)
      end
    end
  end

  it "refuses shards outside of the directory" do
    ["../secret.safetensors", "/etc/passwd", "model.safetensors.index.json"].each do |shard|
      index = write("model.safetensors.index.json", JSON.generate(weight_map: { a: shard }))
      expect { described_class.open(index) }.to raise_error(Candle::CorruptModelError, /shard/)
      expect { described_class.open(@directory) }.to raise_error(Candle::CorruptModelError, /shard/)
    end
  end

  it "never runs a pickle's code" do
    mark = File.join(@directory, "executed")
    path = write("pytorch_model.bin", "cposix\nsystem\n(S'touch #{mark}'\ntR.")
    expect { described_class.open(path) }.to raise_error(Candle::CorruptModelError, /pytorch_model\.bin/)
    expect(File.exist?(mark)).to be(false)
  end
end
