# frozen_string_literal: true

require "fileutils"
require "json"
require "tmpdir"

# Damaged weights: a model that computes NaN says so, and nothing is sorted by it.
RSpec.describe "A model that computes what is no number" do
  nan = { "F32" => [Float::NAN].pack("e"), "F16" => "\x00\x7E".b }

  # A copy of a tiny model, the first number of one of its tensors being NaN.
  def damaged(name, tensor, nan)
    Dir.mktmpdir do |directory|
      FileUtils.cp_r("#{TinyModels.path(name)}/.", directory)
      path = File.join(directory, "model.safetensors")
      bytes = File.binread(path)
      header = JSON.parse(bytes[8, bytes.unpack1("Q<")])
      number = nan.fetch(header.dig(tensor, "dtype"))
      bytes[8 + bytes.unpack1("Q<") + header.dig(tensor, "data_offsets", 0), number.bytesize] = number
      File.binwrite(path, bytes)
      yield directory
    end
  end

  { Candle::Classifier => ["bert-sequence", "classifier.bias", ->(model) { model.classify("the fox") }],
    Candle::Reranker => ["bert-reranker", "classifier.bias", ->(model) { model.rerank("the", %w[fox dog]) }],
    Candle::EmbeddingModel => ["bert-sentence", "embeddings.LayerNorm.bias",
                               ->(model) { model.embed("the fox") }] }.each do |type, (name, tensor, call)|
    it "is told by #{type}" do
      damaged(name, tensor, nan) do |directory|
        model = type.from_pretrained(directory, device: "cpu")
        expect { call.call(model) }.to raise_error(Candle::DeviceError, /aren't numbers \(NaN/)
      end
    end
  end
end
