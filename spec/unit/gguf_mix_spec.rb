# frozen_string_literal: true

require "json"

require "spec_helper"

# What llama.cpp's quantizer chooses; make_mixes.py asks it.
RSpec.describe Candle::GgufMix do
  reference = JSON.parse(File.read(File.expand_path("../fixtures/weights/mixes.json", __dir__)))

  def chosen(mix, shape, importance:)
    keys = { architecture: "llama", layers: shape["layers"], groups: shape["heads"] / shape["key_heads"],
             experts: shape["experts"], tied: shape["tied"], importance: importance }
    described_class.new(mix, **keys).types(shape["tensors"].map { |name, size| { name: name, shape: size } })
  end

  reference["cases"].each do |name, shape|
    %w[plain importance].each do |given|
      it "chooses types of a #{name} model as llama.cpp does (#{given})" do
        wrong = shape[given].flat_map do |mix, letters|
          expected = letters.chars.map { |letter| reference["letters"][letter] }
          tensors = shape["tensors"].map(&:first)
          pairs = tensors.zip(expected, chosen(mix, shape, importance: given == "importance"))
          pairs.reject { |_, wanted, found| wanted == found }.map { |pair| [mix, *pair] }
        end
        expect(shape[given]).not_to be_empty
        expect(wrong).to be_empty
      end
    end
  end

  it "makes files of FP4 that llama.cpp's quantizer has no name for" do
    tensors = [{ name: "token_embd.weight", shape: [8, 64] }, { name: "blk.0.ffn_up.weight", shape: [4, 64] },
               { name: "output.weight", shape: [8, 64] }]
    types = %w[mxfp4 nvfp4].map { |mix| chosen(mix, { **tiny, "tensors" => tensors.map(&:values) }, importance: false) }
    expect(types).to eq([%w[mxfp4 mxfp4 q8_0], %w[nvfp4 nvfp4 q8_0]])
  end

  it "needs no matrix of importance for three bits" do
    tensors = [["blk.0.attn_q.weight", [256, 256]], ["blk.0.ffn_down.weight", [256, 256]]]
    expect(chosen("iq3_xxs", { **tiny, "tensors" => tensors }, importance: false)).to eq(%w[iq3_xxs q3_k])
  end

  it "refuses names that it does not know, and types without the importance that they need" do
    expect { described_class.named("q9_k") }.to raise_error(ArgumentError, /"q9_k" is unknown.*q4_k_m/)
    expect { described_class.named(:iq2_xs) }.to raise_error(ArgumentError, /iq2_xs needs an importance matrix/)
    expect(described_class.named("Q4_K")).to eq("q4_k_m")
    expect(described_class.named("IQ1_S", importance: "file")).to eq("iq1_s")
  end

  let(:tiny) { { "layers" => 1, "heads" => 4, "key_heads" => 4, "experts" => 0, "tied" => false } }
end
