# frozen_string_literal: true

require "fileutils"
require "json"
require "tmpdir"

require "candle"

require_relative "../../spec/support/quantizer_sources"
require_relative "../../spec/support/tiny_folder"
require_relative "../../spec/support/wide_weights"
require_relative "llama_cpp"

# Whether llama.cpp reads the files that `Candle::Quantizer` writes as we do: the log probabilities of a text, and the
# tokens of greedy decoding.
class WrittenFiles
  DECODERS = File.join(TinyFolder.path, "decoders")
  # Written as f32.
  MODELS = %w[llama llama3 llama-linear granite mixtral qwen2 qwen3 qwen3-moe-every gemma gemma2-even gemma3-six phi
              phi3 phi3-longrope olmo2 smollm3-four qwen2-moe-every stablelm stablelm-parallel gpt2 gpt-neox
              gpt-neox-sequential falcon falcon-new glm4].freeze
  # Written as f32, too.
  SEEDED = QuantizerSources.of_llama_cpp.freeze
  # Written of a model with rows of whole blocks.
  TYPES = Candle::Quantizer::TYPES.keys.freeze
  TEXT = "the quick brown fox jumps"
  LENGTH = 12
  WIDTH = 256
  # Log probabilities of f32 may differ by as much, those of other types, and by how much likelier another greedy token
  # may be.
  DENSE = 0.02
  QUANTIZED = 0.1
  CLOSE = 0.05

  # @param models [Array<String>]
  # @param seeded [Array<String>]
  # @param types [Array<String>]
  # @param reader [#open] yields what answers `logprobs(ids)` and `greedy(ids, count)` for the path of a file
  def initialize(models: MODELS, seeded: SEEDED, types: TYPES, reader: LlamaCpp)
    @models = models
    @seeded = seeded
    @types = types
    @reader = reader
  end

  # @return [Array<String>] what differs; empty when all is well
  def run
    Dir.mktmpdir do |directory|
      @directory = directory
      sources = @models.to_h { |model| [model, File.join(DECODERS, model)] }
      @seeded.each { |name| sources[name] = QuantizerSources.write(name, File.join(directory, name)) }
      [*sources.map { |name, source| checked("#{name} as f32", source, "f32") }, *checked_types].compact
    end
  end

  private

  def checked_types
    return [] if @types.empty?

    wide = write_wide
    text = File.join(@directory, "text.txt").tap { |path| File.write(path, "#{TEXT} " * 20) }
    matrix = Candle::Quantizer.imatrix(wide, text: text, to: File.join(@directory, "imatrix.gguf"), device: "cpu")
    @types.map { |type| checked("llama of #{WIDTH} columns as #{type}", wide, type, matrix) }
  end

  # What differs in one file.
  def checked(name, source, type, matrix = nil)
    path = Candle::Quantizer.quantize(source, to: File.join(@directory, "m.gguf"), type: type, imatrix: matrix)
    llm = Candle::LLM.from_pretrained(path, device: "cpu")
    problem = @reader.open(path) { |other| difference(llm, other, type == "f32" ? DENSE : QUANTIZED) }
    puts "#{name}: #{problem || "alike"}"
    "#{name}: #{problem}" if problem
  rescue Bench::Worker::Failure => e
    "#{name}: #{e.message}".tap { |line| puts line }
  ensure
    llm&.close
  end

  def difference(llm, other, allowed)
    ids = llm.tokenizer.encode(TEXT)
    pairs = llm.logprobs(TEXT).filter_map { |token| token[:logprob] }.zip(other.logprobs(ids))
    worst = pairs.map { |ours, theirs| (ours - theirs).abs }.max
    return format("a log probability differs by %.3f", worst) unless worst <= allowed

    gap = gap(llm, other.greedy(ids, LENGTH))
    format("another greedy token is likelier by %.3f", gap) if gap > CLOSE
  end

  # How much likelier our token is, where greedy decoding first differs.
  def gap(llm, theirs)
    greedy = Candle::GenerationConfig.deterministic(max_length: LENGTH)
    ours = llm.complete(TEXT, config: greedy, logprobs: 10)
    step = ours.token_ids.zip(theirs).index { |one, two| one != two } or return 0.0
    found = ours.logprobs[step]
    other = found[:top].find { |entry| entry[:id] == theirs[step] }
    other ? found[:logprob] - other[:logprob] : Float::INFINITY
  end

  # A Llama of one layer, wide enough for blocks of 256.
  def write_wide
    path = File.join(@directory, "wide").tap { |folder| FileUtils.mkdir_p(folder) }
    source = File.join(DECODERS, "llama")
    %w[tokenizer.json tokenizer_config.json].each { |file| FileUtils.cp(File.join(source, file), path) }
    config = JSON.parse(File.read(File.join(source, "config.json"), encoding: "UTF-8"))
    words = { "hidden_size" => WIDTH, "intermediate_size" => WIDTH, "num_hidden_layers" => 1, "head_dim" => 64,
              "num_attention_heads" => 4, "num_key_value_heads" => 4 }
    File.write(File.join(path, "config.json"), JSON.generate(config.merge(words)))
    WideWeights.write(File.join(path, "model.safetensors"), shapes(config.fetch("vocab_size")), seed: 5)
    path
  end

  def shapes(vocabulary)
    matrices = %w[self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj mlp.gate_proj mlp.up_proj
                  mlp.down_proj].to_h { |name| ["model.layers.0.#{name}.weight", [WIDTH, WIDTH]] }
    norms = %w[layers.0.input_layernorm layers.0.post_attention_layernorm norm].to_h do |name|
      ["model.#{name}.weight", [WIDTH]]
    end
    { "model.embed_tokens.weight" => [vocabulary, WIDTH], "lm_head.weight" => [vocabulary, WIDTH], **matrices, **norms }
  end
end
