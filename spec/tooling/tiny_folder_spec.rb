# frozen_string_literal: true

RSpec.describe TinyFolder do
  # Kilobytes on a disk with blocks of four.
  def size(folder)
    Dir[File.join(folder, "**/{*,.*}")].sum { |path| [(File.size(path) / 4096.0).ceil, 1].max * 4 }
  end

  it "keeps what the repository stores small" do
    expect(size(SeededModels::FIXTURES)).to be < 38_000
  end

  it "writes weights, GGUF files and files that are the same as others" do
    ["trocr/model.safetensors", "gguf-vlms/llava/model.gguf", "florence2/tokenizer.json"].each do |file|
      expect(File).not_to exist(File.join(described_class::SOURCE, file))
      expect(File).to exist(TinyModels.path(file))
    end
    left = Dir[File.join(described_class.path, "**/{tensors,links,lists,*.gguf}.json")]
    expect(left).to eq([])
  end

  it "has all other fixtures beside the checkpoints" do
    expect(Dir.children(described_class.fixtures)).to match_array(Dir.children(SeededModels::FIXTURES))
  end

  it "knows when the fixtures have changed" do
    before = described_class.state
    path = File.join(described_class::SOURCE, described_class::LINKS)
    time = File.mtime(path)
    File.utime(time, time + 1, path)
    expect(described_class.state).not_to eq(before)
  ensure
    File.utime(time, time, path)
  end

  it "rounds numbers of 16 bits to the nearest one, and to the even one of two" do
    { 0.0 => 0, 1.0 => 0x3C00, -2.5 => 0xC100, 0.1 => 0x2E66, 2049.0 => 0x6800, 2051.0 => 0x6802, 65_504.0 => 0x7BFF,
      2.0**-14 => 0x0400, 2.0**-24 => 0x0001, -(2.0**-25) => 0x8000, 0.99999 => 0x3C00 }.each do |number, bits|
      expect(HalfFloats.pack([number], "F16").unpack1("S<")).to eq(bits), number.to_s
    end
    expect(HalfFloats.unpack([0x0001, 0x2E66, 0xC100].pack("S<*"), "F16")).to eq([2.0**-24, 0.0999755859375, -2.5])
    expect(HalfFloats.pack([1.0, 1.00390625, 1.01171875], "BF16").unpack("S<*")).to eq([0x3F80, 0x3F80, 0x3F82])
  end

  it "takes a part of a parameter for a tensor with another name" do
    whole = SeededModels.elements("a", 3, { "shape" => [6], "dtype" => "F32", "center" => 0, "spread" => 1 })
    part = { "shape" => [2], "dtype" => "F32", "center" => 0, "spread" => 1, "of" => "a", "first" => 4 }
    expect(SeededModels.elements("b", 3, part)).to eq(whole[16..])
  end
end
