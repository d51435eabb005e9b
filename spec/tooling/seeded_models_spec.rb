# frozen_string_literal: true

RSpec.describe SeededModels do
  # What spec/fixtures/seeded_models/weights.py gives for these names.
  it "computes the weights of the reference" do
    norm = { "shape" => [3], "dtype" => "F32", "center" => 1.0, "spread" => 0.4 }
    expect(described_class.elements("model.norm.weight", 7, norm)).to eq([1.0095469, 0.9720191, 1.0780883].pack("e*"))
    choices = { "shape" => [2, 2], "dtype" => "I64", "below" => 5 }
    expect(described_class.elements("tid2eid", 3, choices)).to eq([3, 2, 4, 0].pack("q<*"))
  end

  it "writes whole checkpoints" do
    described_class.checkpoint("gpt_oss") do |folder|
      expect(Dir.children(folder)).to contain_exactly("config.json", "model.safetensors", "tokenizer.json",
                                                      "tokenizer_config.json")
      tensors = described_class.record("gpt_oss", "tensors.json").fetch("tensors")
      bytes = File.binread(File.join(folder, "model.safetensors"))
      header = JSON.parse(bytes[8, bytes.unpack1("Q<")])
      expect(header.transform_values { |entry| entry["shape"] })
        .to eq(tensors.transform_values { |entry| entry["shape"] })
      expect(header.values.last["data_offsets"].last).to eq(bytes.bytesize - 8 - bytes.unpack1("Q<"))
    end
  end

  it "has fixtures of a few kilobytes that say what they are" do
    described_class.names.each do |name|
      folder = File.join(described_class::FIXTURES, "seeded", name)
      sizes = Dir.children(folder).to_h { |file| [file, File.size(File.join(folder, file))] }
      expect(sizes.delete("gguf.json").to_i).to be < 40_000, name
      expect(sizes.keys).to contain_exactly("config.json", "expected.json", "tensors.json")
      expect(sizes.values.sum).to be < 40_000, name
      expected = described_class.record(name)
      expect(described_class.record(name, "config.json")).to include("model_type" => expected["model_type"])
      expect(name).to start_with(expected["model_type"])
      expect(expected["cases"].map { |one| one["greedy"].size }).to all eq(24)
    end
  end
end
