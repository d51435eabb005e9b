# frozen_string_literal: true

require "fileutils"
require "json"
require_relative "seeded_models"

# Checkpoints of spec/fixtures/seeded that `Candle::Quantizer` writes.
module QuantizerSources
  FULL = ["full_attention"].freeze
  WINDOWED = ["sliding_attention"].freeze
  YARN = { "factor" => 4.0, "original_max_position_embeddings" => 16, "rope_theta" => 10_000.0,
           "rope_type" => "yarn" }.freeze
  private_constant :FULL, :WINDOWED, :YARN
  # By fixture, what its configuration says otherwise here: files can't say what the fixture does.
  ALL = {
    "arcee" => {}, "olmo" => {}, "olmoe" => { "clip_qkv" => nil }, "olmo3" => { "rope_parameters" => YARN },
    "cohere" => {}, "cohere-norms" => {}, "cohere2" => { "layer_types" => WINDOWED * 3 }, "exaone4" => {},
    "exaone_moe" => {}, "ernie4_5" => {}, "ernie4_5_moe" => {}, "hunyuan_v1_dense" => {}, "hunyuan_v1_moe" => {},
    "seed_oss" => {}, "ministral3" => {}, "granitemoe" => {}, "granitemoeshared" => {}, "glm" => {}, "glm4_moe" => {},
    "glm4_moe_lite" => {}, "dots1" => { "layer_types" => FULL * 3 }, "phimoe" => {}, "nemotron" => {}, "apertus" => {},
    "minimax_m2" => {}, "afmoe" => { "layer_types" => WINDOWED * 3 }, "lfm2" => {},
    "lfm2_moe" => { "routed_scaling_factor" => 1.0 }, "gpt_bigcode" => {}, "deepseek_v3" => {},
    "deepseek_v2-lite" => {},
    "deepseek_v2" => { "rope_parameters" => YARN.merge("mscale" => 0.6, "mscale_all_dim" => 0.6) }
  }.freeze

  # How far llama.cpp's logits of the converter's own file may be from those of transformers.
  CLOSE = 1e-3
  private_constant :CLOSE

  # @return [Array<String>] those whose files llama.cpp reads as transformers reads the checkpoint
  def self.of_llama_cpp
    ALL.keys.select do |name|
      recipe = SeededModels.record(name, "gguf.json")
      cases = recipe["cases"] || SeededModels.record(name)["cases"]
      logits = recipe["llama_cpp"] or next
      cases.zip(logits).all? { |one, found| one["last"].zip(found).all? { |a, b| (a - b).abs < CLOSE } }
    end
  end

  # @param name [String] of a fixture
  # @param path [String] a directory, which is made
  # @param words [Hash] what the configuration says otherwise
  # @return [String] the directory with the whole checkpoint
  def self.write(name, path, words = ALL.fetch(name))
    FileUtils.mkdir_p(path)
    SeededModels.write(name, path)
    file = File.join(path, "config.json")
    File.write(file, JSON.generate(JSON.parse(File.read(file)).merge(words)))
    path
  end
end
