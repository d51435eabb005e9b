# frozen_string_literal: true

require "spec_helper"
require "support/gguf_recipes"
require "support/quantizer_sources"
require "tmpdir"

# The gguf.json of these checkpoints has what llama.cpp's converter makes of them.
RSpec.describe Candle::Quantizer do
  text = "the quick brown fox jumps over the lazy dog"
  # Keys where the converter says something else: it counts layers that are left out here, and doesn't look at
  # some words of these configurations.
  otherwise = {
    "ernie4_5_moe" => %w[expert_shared_feed_forward_length], "gpt_bigcode" => %w[feed_forward_length],
    "glm" => %w[attention.layer_norm_rms_epsilon context_length], "glm4_moe" => %w[block_count nextn_predict_layers],
    "glm4_moe_lite" => %w[leading_dense_block_count], "exaone_moe" => %w[nextn_predict_layers rope.scaling.type],
    "nemotron" => %w[attention.layer_norm_rms_epsilon rope.scaling.type], "olmo3" => %w[rope.freq_base_swa],
    "phimoe" => %w[rope.scaling.original_context_length]
  }

  around do |example|
    Dir.mktmpdir do |directory|
      @directory = directory
      example.run
    end
  end

  def source(name, words)
    QuantizerSources.write(name, File.join(@directory, name), words)
  end

  def quantize(path, type: "f32", **options)
    described_class.quantize(path, to: File.join(@directory, "m.gguf"), type: type, **options)
  end

  # Keys of a file without its architecture's name.
  def plain(metadata)
    metadata.transform_keys { |key| key.delete_prefix("#{metadata.fetch("general.architecture")}.") }
  end

  # Tensors that are not what the converter makes of the checkpoint.
  def differing(weights, tensors, checkpoint)
    known = GgufRecipes.tensors(File.join(checkpoint, "model.safetensors"))
    tensors.reject do |name, recipe|
      found = weights.tensor(name, device: "cpu", dtype: :f32).to_packed.unpack("e*")
      wanted = GgufRecipes.cooked(recipe, known)
      recipe.key?("values") ? alike?(found, wanted) : found.pack("e*") == wanted.pack("e*")
    end
  end

  def alike?(one, other)
    return one.size == other.size && one.zip(other).all? { |a, b| alike?(a, b) } if other.is_a?(Array)

    one == other || (one.is_a?(Numeric) && other.is_a?(Numeric) && (one - other).abs <= 1e-6 * [other.abs, 1e-3].max)
  end

  def logprobs(path, text)
    llm = Candle::LLM.from_pretrained(path, device: "cpu")
    llm.logprobs(text).filter_map { |entry| entry[:logprob] }
  ensure
    llm&.close
  end

  QuantizerSources::ALL.each do |name, words|
    it "writes #{name} as llama.cpp's converter does, with the checkpoint's own log probabilities" do
      checkpoint = source(name, words)
      path = quantize(checkpoint)
      recipe = SeededModels.record(name, "gguf.json")
      weights = Candle::Weights.open(path)
      found = plain(weights.metadata)
      wanted = plain(recipe["metadata"].transform_values(&:last)).except(*otherwise.fetch(name, []))
      other = wanted.reject { |key, value| alike?(found[key], value) }
      expect(other.to_h { |key, value| [key, [found[key], value]] }).to eq({})
      expect(weights.names).to match_array(recipe["tensors"].keys)
      expect(differing(weights, recipe["tensors"], checkpoint).keys).to eq([])
      one, other = [path, checkpoint].map { |from| logprobs(from, text) }
      expect(one.size).to be > 5
      expect(one.zip(other).map { |a, b| (a - b).abs }.max).to be < 1e-4
    end
  end

  it "refuses by name what GGUF files of these models don't say" do
    {
      ["olmoe", {}] => /clip_qkv: 2.0/, ["cohere2", {}] => /every 4th/, ["afmoe", {}] => /every 4th/,
      ["dots1", {}] => /windows of 8 tokens/, ["lfm2_moe", {}] => /routed_scaling_factor: 1.7/,
      ["lfm2", { "conv_bias" => true }] => /conv_bias: true/, ["deepseek_v2", {}] => /mscale: 0.8 beside/,
      ["deepseek_v3", { "rope_interleave" => false }] => /rope_interleave: false/,
      ["deepseek_v3", { "moe_layer_freq" => 2 }] => /moe_layer_freq: 2/,
      ["olmo3", {}] => /attention_factor: 1.2/,
      ["exaone4", { "layer_types" => nil, "sliding_window_pattern" => "LLLG" }] => /"LLLG" without layer_types/,
      ["exaone4", { "layer_types" => ["full_attention"] }] => /1 entries for 4 layers/,
      ["gpt_bigcode", { "multi_query" => false }] => /multi_query: false/,
      ["phimoe", { "router_jitter_noise" => 0.1 }] => /router_jitter_noise: 0.1/,
      ["ernie4_5_moe", { "moe_layer_end_index" => 1 }] => /moe_layer_end_index: 1/,
      ["hunyuan_v1_moe", { "num_shared_expert" => [1, 2] }] => /num_shared_expert: \[1, 2\]/,
      ["arcee", { "hidden_act" => "silu" }] => /activation "silu"/
    }.each do |(name, words), message|
      expect { quantize(source(name, words)) }.to raise_error(Candle::Error, message)
    end
    expect(File.exist?(File.join(@directory, "m.gguf"))).to be(false)
  end

  %w[deepseek_v3 granitemoeshared lfm2 hunyuan_v1_moe].each do |name|
    it "measures the importance of #{name}'s columns, and uses it" do
      path = File.join(@directory, "text.txt").tap { |file| File.write(file, "#{text} " * 20) }
      checkpoint = source(name, {})
      expect(logprobs(quantize(checkpoint, type: "q4_0", calibration: path), text).size).to be > 5
    end
  end
end
