# frozen_string_literal: true

require "tmpdir"
require_relative "../../rakelib/support/llama2c"

RSpec.describe Tasks::Llama2c do
  sizes = { hidden: 8, inner: 12, layers: 2, heads: 2, kv_heads: 1, vocabulary: 264, positions: 16 }.freeze
  counts = [264 * 8, 2 * 8, 2 * 64, 2 * 32, 2 * 32, 2 * 64, 2 * 8, 2 * 96, 2 * 96, 2 * 96, 8, 2 * 16 * 2].freeze
  tokens = ["<unk>", "\n<s>\n", "\n</s>\n", *Array.new(256, &:chr), " ", "a", "b", " a", " ab"].freeze

  around do |example|
    Dir.mktmpdir do |directory|
      @source = File.join(directory, "model.data")
      @target = File.join(directory, "model.gguf")
      random = Random.new(1)
      @values = Array.new(counts.sum) { random.rand - 0.5 }
      vocabulary = tokens.each_with_index.map { |text, id| [-id.to_f, text.bytesize].pack("el<") + text.b }
      File.binwrite(@source, sizes.values.pack("l<7") + @values.pack("e*") + [27].pack("l<") + vocabulary.join)
      described_class.convert(@source, @target)
      example.run
    end
  end

  it "keeps every tensor" do
    weights = Candle::Weights.open(@target)
    expect(weights.size).to eq(2 + (2 * 9))
    start = counts.take(8).sum + 96
    down = weights.tensor("blk.1.ffn_down.weight").to_a
    expect(down.flatten).to be_near(@values[start, 96], 1e-6)
    expect(down.size).to eq(8)
    expect(weights.tensor("output_norm.weight").to_a).to be_near(@values[counts.take(10).sum, 8], 1e-6)
    expect(weights.metadata["llama.attention.head_count_kv"]).to eq(1)
  end

  it "gives a model that runs, with its tokenizer" do
    llm = Candle::LLM.from_pretrained(@target, device: "cpu")
    expect(llm.tokenizer.encode("ab")).to eq([1, 263])
    expect(llm.eos_token).to eq("</s>")
    expect(llm.context_length).to eq(16)
    expect(llm.complete("ab", max_length: 3).usage.prompt_tokens).to eq(2)
  end
end
