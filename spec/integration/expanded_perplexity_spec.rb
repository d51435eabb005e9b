# frozen_string_literal: true

require "json"

require "spec_helper"
require "support/seeded_models"
require "tmpdir"

# Checkpoints that other libraries quantized, beside the same weights written back as f32.
RSpec.describe Candle::Quantizer, ".convert" do
  text = "Hello, World! A quick (brown) fox jumps; 42 dogs sleep."
  tokenizer = File.join(SeededModels::FIXTURES, "tiny", "decoders", "llama")

  around do |example|
    Dir.mktmpdir do |directory|
      @directory = directory
      example.run
    end
  end

  # The checkpoint with as many of a tokenizer's tokens as it has.
  define_method(:with_tokenizer) do |name|
    path = File.join(@directory, name)
    FileUtils.cp_r(File.join(SeededModels::FIXTURES, "quantized", name), path)
    FileUtils.cp(File.join(tokenizer, "tokenizer_config.json"), path)
    size = JSON.parse(File.read(File.join(path, "config.json")))["vocab_size"]
    found = JSON.parse(File.read(File.join(tokenizer, "tokenizer.json")))
    found["model"]["vocab"].select! { |_, id| id < size }
    found["model"]["merges"] = [] if size < 273
    found["added_tokens"].select! { |token| token["id"] < size }
    File.write(File.join(path, "tokenizer.json"), JSON.generate(found))
    path
  end

  def perplexity(path, text)
    llm = Candle::LLM.from_pretrained(path, device: "cpu", dtype: "f32")
    llm.perplexity(text)
  ensure
    llm&.close
  end

  Dir.children(File.join(SeededModels::FIXTURES, "quantized")).sort.each do |name|
    it "gives the weights of #{name}, whose perplexity is that of the quantized ones within 0.1 %" do
      source = with_tokenizer(name)
      dense = described_class.convert(source, to: File.join(@directory, "dense"), dtype: "f32")
      types = Candle::Weights.open(dense).to_h.values.map { |info| info[:dtype] }
      expect(types.uniq - %i[f32 f16 bf16]).to eq([])
      found, wanted = [source, dense].map { |path| perplexity(path, text) }
      expect(found).to be_within(0.001 * wanted).of(wanted)
    end
  end
end
