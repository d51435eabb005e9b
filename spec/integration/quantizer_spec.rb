# frozen_string_literal: true

require "json"

require "spec_helper"
require "support/child_ruby"
require "tmpdir"

RSpec.describe Candle::Quantizer do
  include ChildRuby

  let(:text) { "the quick brown fox jumps" }

  around do |example|
    Dir.mktmpdir do |directory|
      @directory = directory
      example.run
    end
  end

  def decoder(name)
    File.join(TinyModels.path("decoders"), name)
  end

  def quantized(name)
    File.expand_path("../fixtures/quantized/#{name}", __dir__)
  end

  def logprobs(source)
    Candle::LLM.from_pretrained(source, device: "cpu").logprobs(text).filter_map { |entry| entry[:logprob] }
  end

  def worst(one, other)
    one.zip(other).map { |a, b| (a - b).abs }.max
  end

  %w[llama llama3 llama-linear granite mixtral qwen2 qwen3 qwen3-moe-every].each do |name|
    it "writes #{name} as a file that says the same" do
      path = described_class.quantize(decoder(name), to: File.join(@directory, "m.gguf"), type: "f32")
      expect(worst(logprobs(path), logprobs(decoder(name)))).to be < 1e-4
    end
  end

  # The fixture with other words in its configuration.
  def patched(name, words)
    path = File.join(@directory, "patched-#{name}")
    FileUtils.cp_r(decoder(name), path)
    file = File.join(path, "config.json")
    File.write(file, JSON.generate(JSON.parse(File.read(file)).merge(words)))
    path
  end

  {
    "gemma" => {}, "gemma2-even" => {}, "gemma3-six" => {},
    "phi3" => {}, "phi3-longrope" => {}, "olmo2" => {}, "smollm3-four" => {}, "qwen2-moe-every" => {}, "stablelm" => {},
    "stablelm-parallel" => {}, "gpt2" => {}, "gpt-neox" => {}, "gpt-neox-sequential" => {}, "falcon" => {},
    "falcon-new" => {}, "phi" => {}, "glm4" => {}, "starcoder2" => { "sliding_window" => nil }
  }.each do |name, words|
    it "writes #{name} by the engine's names" do
      source = patched(name, words)
      path = described_class.quantize(source, to: File.join(@directory, "m.gguf"), type: "f32")
      expect(worst(logprobs(path), logprobs(source))).to be < 1e-4
    end
  end

  it "refuses by name what GGUF files of a model don't say" do
    path = File.join(@directory, "m.gguf")
    {
      ["gemma2", {}] => /query_pre_attn_scalar: 24/, ["gemma3", { "query_pre_attn_scalar" => 16 }] => /every 6th/,
      ["smollm3", {}] => /positions other than every 4th/, ["starcoder2", {}] => /windows of 8 tokens/,
      ["llama", { "hidden_act" => "relu" }] => /activation "relu"/,
      ["llama3", { "rope_theta" => -500.0 }] => /rope_theta must be positive, not -500.0/,
      ["gpt2", { "scale_attn_by_inverse_layer_idx" => true }] => /scale_attn_by_inverse_layer_idx: true/,
      ["falcon", { "alibi" => true }] => /alibi: true/, ["falcon", { "parallel_attn" => false }] => /parallel_attn/,
      ["falcon-new", { "num_kv_heads" => 3 }] => /groups of|query_key_value/,
      ["qwen2-moe-every", { "norm_topk_prob" => true }] => /norm_topk_prob: true/,
      ["qwen3-moe-every", { "norm_topk_prob" => false }] => /norm_topk_prob: false/,
      ["phi3-longrope", { "rope_scaling" => { "rope_type" => "longrope", "long_factor" => [1.0],
                                              "short_factor" => [1.0] * 4 } }] => /long_factor/,
      ["llama", { "rope_parameters" => { "rope_type" => "dynamic", "factor" => 2.0 } }] => /"dynamic"/
    }.each do |(name, words), message|
      source = patched(name, words)
      expect { described_class.quantize(source, to: path, type: "f32") }.to raise_error(Candle::Error, message)
      FileUtils.rm_rf(source)
    end
    expect(File.exist?(path)).to be(false)
  end

  describe "encoders" do
    def encoder(name)
      TinyModels.path(name)
    end

    %w[bert bert-sentence nomic-bert].each do |name|
      it "are written: #{name}" do
        path = described_class.quantize(encoder(name), to: File.join(@directory, "m.gguf"), type: "f32")
        one, other = [path, encoder(name)].map { |from| Candle::EmbeddingModel.from_pretrained(from, device: "cpu") }
        found, wanted = [one, other].map { |model| model.embed(["The quick brown fox", "a dog, jumping!"]) }
        expect(found.flatten.zip(wanted.flatten).map { |a, b| (a - b).abs }.max).to be < 1e-5
        expect(one.tokenizer.encode("Unknowable FOXES")).to eq(other.tokenizer.encode("Unknowable FOXES"))
      end
    end

    # A table of characters that changes none.
    it "are written with Unigram tokenizers: xlm-roberta" do
      source = File.join(@directory, "xlm")
      FileUtils.cp_r(encoder("xlm-roberta"), source)
      file = File.join(source, "tokenizer.json")
      tokenizer = JSON.parse(File.read(file))
      to = File.join(@directory, "m.gguf")
      expect { described_class.quantize(source, to: to, type: "f32") }
        .to raise_error(Candle::UnsupportedModelError, /normalizer "NFKC"/)
      tokenizer["normalizer"]["normalizers"].shift
      File.write(file, JSON.generate(tokenizer))
      described_class.quantize(source, to: to, type: "f32")
      one, other = [to, source].map { |from| Candle::EmbeddingModel.from_pretrained(from, device: "cpu") }
      texts = ["the quick  brown fox", "a dog, jumping!"]
      expect(texts.map { |text| one.tokenizer.encode(text) }).to eq(texts.map { |text| other.tokenizer.encode(text) })
      found, wanted = [one, other].map { |model| model.embed(texts, pooling: :mean) }
      expect(found.flatten.zip(wanted.flatten).map { |a, b| (a - b).abs }.max).to be < 1e-5
      tokenizer["normalizer"] = { "type" => "Precompiled", "precompiled_charsmap" => "?" }
      File.write(file, JSON.generate(tokenizer))
      expect { described_class.quantize(source, to: to, type: "f32") }
        .to raise_error(Candle::CorruptModelError, /precompiled_charsmap/)
    end

    it "need a tokenizer that GGUF files have a form for" do
      source = File.join(@directory, "bert")
      FileUtils.cp_r(encoder("bert"), source)
      tokenizer = JSON.parse(File.read(File.join(source, "tokenizer.json")))
      tokenizer["normalizer"]["lowercase"] = false
      File.write(File.join(source, "tokenizer.json"), JSON.generate(tokenizer))
      expect { described_class.quantize(source, to: File.join(@directory, "m.gguf"), type: "f32") }
        .to raise_error(Candle::UnsupportedModelError, /normalizers other than BERT/)
    end
  end

  # A model whose rows are whole blocks of every type.
  describe "block types" do
    let(:source) do
      path = patched("llama", "hidden_size" => 256, "intermediate_size" => 256, "num_hidden_layers" => 2,
                              "num_attention_heads" => 4, "num_key_value_heads" => 4, "head_dim" => 64)
      shapes = Candle::Weights.open(decoder("llama")).to_h.transform_values { |info| info[:shape] }
      wide = shapes.transform_values { |shape| shape.map { |size| size > 64 ? size : 256 } }
      WideWeights.write(File.join(path, "model.safetensors"), wide)
      path
    end
    let(:matrix) do
      text = File.join(@directory, "text.txt").tap { |file| File.write(file, "the quick brown fox jumps over the dog") }
      described_class.imatrix(source, text: text, to: File.join(@directory, "i.gguf"), device: "cpu")
    end

    { "iq3_xxs" => 0.35, "iq3_s" => 0.3, "tq1_0" => 1.0, "tq2_0" => 1.0, "mxfp4" => 0.3, "nvfp4" => 0.25,
      "iq1_s" => 1.0, "iq1_m" => 1.0, "iq2_xxs" => 0.7, "iq2_xs" => 0.6, "iq2_m" => 0.6 }.each do |type, most|
      it "has #{type}" do
        given = type.match?(/\Aiq[12]/) ? matrix : nil
        path = described_class.quantize(source, to: File.join(@directory, "m.gguf"), type: type, imatrix: given)
        usual = Candle::GgufMix::TYPES.fetch(type).last
        weights = Candle::Weights.open(path)
        expect(weights.info("blk.1.ffn_up.weight")[:dtype].to_s).to eq(usual)
        numbers, rounded = [Candle::Weights.open(source).tensor("model.layers.1.mlp.up_proj.weight", device: "cpu"),
                            weights.tensor("blk.1.ffn_up.weight", device: "cpu")].map { |one| one.to_a.flatten }
        off = numbers.zip(rounded).sum { |a, b| (a - b)**2 } / numbers.sum { |a| a * a }
        expect(Math.sqrt(off)).to be_between(0.001, most)
        expect(Candle::LLM.from_pretrained(path, device: "cpu").logprobs(text).size).to be > 3
      end
    end

    # make_blocks.py asks llama.cpp's quantizer.
    it "are what llama.cpp makes of the same numbers" do
      expected = JSON.parse(File.read(File.expand_path("../fixtures/weights/encoded.json", __dir__)))
      path = File.join(@directory, "numbers.safetensors")
      WideWeights.write(path, { "numbers" => [8, 256] }, data: [numbers.pack("e*")])
      weights = Candle::Weights.open(path)
      wrong = expected.flat_map do |given, hashes|
        importance = given == "importance" ? columns : nil
        hashes.filter_map do |type, hash|
          blocks = weights.encoded("numbers", type, importance: importance)
          # llama.cpp puts what follows a group of zeros in the wrong place.
          [given, type] unless fnv(type == "iq3_s" ? blocks.byteslice(110..) : blocks) == hash
        end
      end
      expect(wrong).to be_empty
    end

    # Of make_blocks.py.
    def numbers
      Array.new(2048) do |index|
        uniform = ((index * 2_654_435_761 % (1 << 32)) >> 8).fdiv(1 << 24) - 0.5
        group = index / 32
        uniform * (group == 4 ? 0 : (group % 5) + 1)
      end
    end

    def columns
      single = ->(number) { [number].pack("e").unpack1("e") }
      Array.new(256) do |index|
        share = (index * 40_503 % 65_536) / 65_536.0
        single[single[share * share] + single[0.01]]
      end
    end

    def fnv(bytes)
      bytes.each_byte.inject(0xcbf29ce484222325) { |hash, byte| ((hash ^ byte) * 0x100000001b3) % (1 << 64) }.to_s
    end

    it "needs an importance matrix below three bits, of every weight" do
      path = File.join(@directory, "m.gguf")
      expect { described_class.quantize(source, to: path, type: "iq2_xs") }
        .to raise_error(ArgumentError, /iq2_xs needs an importance matrix/)
      other = importance_matrix([["blk.0.ffn_up.weight", 1, [1.0] * 256]])
      expect { described_class.quantize(source, to: path, type: "iq2_xs", imatrix: other) }
        .to raise_error(Candle::CorruptModelError, /says nothing of blk.0.attn_k.weight/)
      expect(File.exist?(path)).to be(false)
    end
  end

  it "rounds weights to the blocks of a type" do
    path = described_class.quantize(decoder("qwen3"), to: File.join(@directory, "m.gguf"), type: "q8_0")
    weights = Candle::Weights.open(path)
    expect(weights.info("blk.0.attn_q.weight")[:dtype].to_s).to eq("q8_0")
    expect(weights.info("output_norm.weight")[:dtype]).to eq(:f32)
    expect(worst(logprobs(path), logprobs(decoder("qwen3")))).to be_between(1e-6, 0.2)
  end

  # As llama-imatrix writes it: entries of a name, calls and numbers.
  def importance_matrix(entries)
    path = File.join(@directory, "m.dat")
    packed = entries.map { |name, calls, numbers| [name.bytesize, name, calls, numbers.size, *numbers] }
    packed = packed.map { |entry| entry.pack("l<a#{entry[0]}l<l<e*") }
    File.binwrite(path, [entries.size].pack("l<") + packed.join)
    path
  end

  def columns_off(path, columns)
    row = Candle::Weights.open(decoder("llama")).tensor("model.layers.0.mlp.up_proj.weight", device: "cpu").to_a
    found = Candle::Weights.open(path).tensor("blk.0.ffn_up.weight", device: "cpu").to_a
    row.zip(found).sum { |a, b| columns.sum { |at| (a[at] - b[at])**2 } }
  end

  it "lets columns that matter have smaller errors" do
    important = Array.new(32) { |at| at < 4 ? 50.0 : 0.02 }
    matrix = importance_matrix([["blk.0.ffn_up.weight", 2, important]])
    plain = described_class.quantize(decoder("llama"), to: File.join(@directory, "a.gguf"), type: "q4_0")
    better = described_class.quantize(decoder("llama"), to: File.join(@directory, "b.gguf"), type: "q4_0",
                                                        imatrix: matrix)
    expect(columns_off(better, 0...4)).to be < (0.8 * columns_off(plain, 0...4))
    expect(columns_off(better, 4...32)).to be > columns_off(plain, 4...32)
  end

  it "refuses an importance matrix of another model or kind" do
    path = File.join(@directory, "a.gguf")
    quantize = ->(matrix) { described_class.quantize(decoder("llama"), to: path, type: "q4_0", imatrix: matrix) }
    other = importance_matrix([["blk.0.ffn_up.weight", 1, [1.0] * 33]])
    expect { quantize.call(other) }.to raise_error(Candle::CorruptModelError, /33 columns, not 32/)
    negative = importance_matrix([["blk.0.ffn_up.weight", 1, [-1.0] * 32]])
    expect { quantize.call(negative) }.to raise_error(Candle::CorruptModelError, /importance/)
    File.binwrite(other, File.binread(other)[0...-4])
    expect { quantize.call(other) }.to raise_error(Candle::CorruptModelError, /cut off/)
    expect { quantize.call(File.join(decoder("llama"), "config.json")) }.to raise_error(Candle::CorruptModelError)
    expect(File.exist?(path)).to be(false)
  end

  describe ".imatrix" do
    let(:expected) { JSON.parse(File.read(File.expand_path("../fixtures/importance.json", __dir__))) }
    let(:text) { File.join(@directory, "text.txt").tap { |path| File.write(path, expected["text"]) } }

    def imatrix(name, context: expected["context"])
      path = File.join(@directory, "#{name}.imatrix.gguf")
      described_class.imatrix(decoder(name), text: text, to: path, context: context, device: "cpu")
    end

    def numbers(weights, name)
      weights.tensor(name, device: "cpu").to_a.flatten
    end

    def renamed(stem)
      stem.sub("model.layers", "blk").sub("self_attn.k_proj", "attn_k").sub("self_attn.q_proj", "attn_q")
          .sub("self_attn.o_proj", "attn_output").sub("mlp.down_proj", "ffn_down")
    end

    it "adds up the squared inputs that transformers gives its modules" do
      expected["cases"].each do |name, modules|
        weights = Candle::Weights.open(imatrix(name))
        modules.each do |stem, wanted|
          found = numbers(weights, "#{renamed(stem)}.weight.in_sum2")
          expect(numbers(weights, "#{renamed(stem)}.weight.counts")).to eq([wanted["rows"]])
          found.zip(wanted["sums"]) { |a, b| expect(a).to be_within(1e-4 * (1 + b)).of(b) }
          expect(found.size).to eq(wanted["sums"].size)
        end
      end
    end

    it "counts the inputs of each expert" do
      weights = Candle::Weights.open(imatrix("mixtral"))
      router, experts = %w[blk.1.ffn_gate_inp.weight blk.1.ffn_up_exps.weight].map do |name|
        [numbers(weights, "#{name}.in_sum2"), numbers(weights, "#{name}.counts")]
      end
      config = JSON.parse(File.read(File.join(decoder("mixtral"), "config.json")))
      expect(experts.last.size).to eq(config["num_local_experts"])
      expect(experts.last.sum).to eq(config["num_experts_per_tok"] * router.last.sum)
      sums = experts.first.each_slice(router.first.size).to_a.transpose.map(&:sum)
      sums.zip(router.first) { |a, b| expect(a).to be_within(1e-3 * b).of(config["num_experts_per_tok"] * b) }
    end

    it "measures for a quantization what a file would say" do
      from_file = described_class.quantize(decoder("llama"), to: File.join(@directory, "a.gguf"), type: "q4_0",
                                                             imatrix: imatrix("llama", context: 512))
      at_once = described_class.quantize(decoder("llama"), to: File.join(@directory, "b.gguf"), type: "q4_0",
                                                           calibration: text)
      plain = described_class.quantize(decoder("llama"), to: File.join(@directory, "c.gguf"), type: "q4_0")
      expect(File.binread(at_once)).to eq(File.binread(from_file))
      expect(File.binread(at_once)).not_to eq(File.binread(plain))
    end

    it "refuses texts without tokens, and two ways at once" do
      File.write(text, "")
      expect { imatrix("llama") }.to raise_error(Candle::InvalidInputError, /two tokens/)
      expect { imatrix("llama", context: 0) }.to raise_error(ArgumentError, /context/)
      path = File.join(@directory, "m.gguf")
      expect { described_class.quantize(decoder("llama"), to: path, imatrix: text, calibration: text) }
        .to raise_error(ArgumentError, /not both/)
      expect { described_class.imatrix(decoder("llama"), text: "nowhere.txt", to: path) }
        .to raise_error(Candle::ModelNotFoundError, /nowhere/)
      expect(File.exist?(path)).to be(false)
    end
  end

  %w[iq4_nl iq4_xs].each do |type|
    it "writes #{type}" do
      path = described_class.quantize(decoder("llama"), to: File.join(@directory, "m.gguf"), type: type)
      expect(Candle::Weights.open(path).info("blk.1.ffn_up.weight")[:dtype].to_s).to eq("iq4_nl")
      expect(worst(logprobs(path), logprobs(decoder("llama")))).to be_between(1e-4, 1.0)
    end
  end

  it "writes several files that load as one" do
    whole = described_class.quantize(decoder("llama"), to: File.join(@directory, "m.gguf"), type: "f16")
    parts = described_class.quantize(decoder("llama"), to: File.join(@directory, "s.gguf"), type: "f16",
                                                       shard_size: 20_000)
    expect(File.basename(parts)).to match(/\As-00001-of-0000\d\.gguf\z/)
    expect(logprobs(parts)).to eq(logprobs(whole))
  end

  it "writes nothing when it is interrupted" do
    stop = proc { |done, _| raise Interrupt if done == 3 }
    path = File.join(@directory, "m.gguf")
    expect { described_class.quantize(decoder("llama"), to: path, progress: stop) }.to raise_error(Interrupt)
    expect(Dir.children(@directory)).to be_empty
    expect { described_class.quantize(decoder("llama"), to: path, shard_size: 20_000, progress: stop) }
      .to raise_error(Interrupt)
    expect { described_class.convert(quantized("awq"), to: File.join(@directory, "dense"), progress: stop) }
      .to raise_error(Interrupt)
    expect(Dir.children(@directory)).to be_empty
  end

  # One million numbers in each matrix.
  it "has one tensor in memory at a time", if: File.exist?("/proc/self/status") do
    width = 1024
    source = patched("llama", "hidden_size" => width, "intermediate_size" => width, "num_hidden_layers" => 6,
                              "num_attention_heads" => 8, "num_key_value_heads" => 8, "head_dim" => 128)
    one, *others = Candle::Weights.open(decoder("llama")).to_h.transform_values { |info| info[:shape] }
                                  .partition { |name, _| !name.start_with?("model.layers.") }.map(&:to_h)
    layer = others.first.select { |name, _| name.start_with?("model.layers.0.") }
    layers = (0...6).flat_map { |at| layer.map { |name, shape| [name.sub(".0.", ".#{at}."), shape] } }.to_h
    shapes = one.merge(layers).transform_values { |shape| shape.map { |size| size > 64 ? size : width } }
    file = File.join(source, "model.safetensors")
    pair = [0.5, -0.25].pack("e*")
    WideWeights.write(file, shapes, data: shapes.values.map { |shape| pair * (shape.inject(:*) / 2) })
    expect(File.size(file)).to be > 160 << 20
    script = <<~RUBY
      require "candle"
      peak = -> { File.read("/proc/self/status")[/VmHWM:\\s+(\\d+)/, 1].to_i }
      quantize = ->(from) { Candle::Quantizer.quantize(from, to: #{File.join(@directory, "m.gguf").inspect}, type: "q4_0") }
      quantize.call(#{decoder("llama").inspect})
      before = peak.call
      quantize.call(#{source.inspect})
      puts peak.call - before
    RUBY
    output, errors, = run_ruby(script)
    expect(errors).to eq("")
    # A tensor in f32, its blocks, and what reading ahead brings in.
    expect(Integer(output)).to be < 64 << 10
  end

  it "says what it can't write" do
    path = File.join(@directory, "m.gguf")
    expect { described_class.quantize(patched("gpt2", "model_type" => "bloom"), to: path) }
      .to raise_error(Candle::UnsupportedModelError, /"bloom" can't be written as GGUF/)
    expect { described_class.quantize(decoder("mistral"), to: path) }
      .to raise_error(Candle::UnsupportedModelError, /windows of \d+ tokens/)
    expect { described_class.quantize(decoder("qwen3-moe"), to: path) }
      .to raise_error(Candle::UnsupportedModelError, /mlp_only_layers/)
    expect { described_class.quantize(decoder("llama"), to: path, type: "q9") }.to raise_error(ArgumentError, /q9/)
    expect { described_class.quantize(decoder("llama"), to: path, imatrix: "m") }
      .to raise_error(Candle::ModelNotFoundError, /no such file/)
    expect(Dir.children(@directory)).to eq(["patched-gpt2"])
  end

  it "arranges rows as files have them, and nothing else" do
    path = File.join(@directory, "n.safetensors")
    WideWeights.write(path, { "numbers" => [4, 2] }, data: [(0...8).to_a.pack("e*")])
    weights = Candle::Weights.open(path)
    arranged = ->(*rows) { weights.encoded("numbers", "f32", rows: rows).unpack("e*").map(&:to_i) }
    expect(arranged[:columns]).to eq([0, 2, 4, 6, 1, 3, 5, 7])
    expect(arranged[:alternate, 1]).to eq([1, 3, 5, 7])
    expect(arranged[:after, 3]).to eq([6, 7])
    expect(arranged[:neighbours, 1]).to eq([0, 1, 4, 5, 2, 3, 6, 7])
    expect(arranged[:apart, 1, 2]).to eq((0...8).to_a)
    expect { arranged[:apart, 3, 1] }.to raise_error(Candle::CorruptModelError, /3 groups of 1/)
    expect { arranged[:after, 4] }.to raise_error(Candle::CorruptModelError, /after 4/)
    expect { arranged[:alternate, 2] }.to raise_error(Candle::CorruptModelError, /pairs/)
    expect { arranged[:sideways] }.to raise_error(Candle::InvalidInputError, /sideways/)
  end

  it "leaves out tokens beyond the table, however large their ids are" do
    source = patched("llama3", {})
    file = File.join(source, "tokenizer.json")
    tokenizer = JSON.parse(File.read(file))
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["added_tokens"] << { "id" => 1 << 40, "content" => "<far>", "special" => true, "normalized" => false,
                                   "single_word" => false, "lstrip" => false, "rstrip" => false }
    File.write(file, JSON.generate(tokenizer))
    path = described_class.quantize(source, to: File.join(@directory, "m.gguf"), type: "f32")
    expect(Candle::LLM.from_pretrained(path, device: "cpu").tokenizer.vocab_size).to be >= vocabulary.size
    expect(worst(logprobs(path), logprobs(decoder("llama3")))).to be < 1e-4
  end

  it "writes quantized checkpoints with dense weights" do
    dense = described_class.convert(quantized("awq"), to: File.join(@directory, "dense"), dtype: "f32")
    one = Candle::Weights.open(dense)
    other = Candle::Weights.open(quantized("awq"))
    name = "model.layers.0.mlp.up_proj.weight"
    expect(one.info(name)[:dtype]).to eq(:f32)
    expect(other.info(name)[:dtype]).to eq(:awq)
    expect(one.tensor(name, device: "cpu").to_packed).to eq(other.tensor(name, device: "cpu").to_packed)
    expect(JSON.parse(File.read(File.join(dense, "config.json")))).not_to include("quantization_config")
  end

  # Of Llama's tokenizer as many tokens as the fixture has.
  def short_tokenizer(directory, size)
    FileUtils.cp(File.join(decoder("llama"), "tokenizer_config.json"), directory)
    found = JSON.parse(File.read(File.join(decoder("llama"), "tokenizer.json")))
    found["model"]["vocab"].select! { |_, id| id < size }
    found["model"]["merges"] = []
    found["added_tokens"].select! { |token| token["id"] < size }
    File.write(File.join(directory, "tokenizer.json"), JSON.generate(found))
  end

  it "takes the stacks of gpt-oss apart, whose experts are in MXFP4" do
    source = File.join(@directory, "gpt_oss")
    FileUtils.cp_r(quantized("gpt_oss"), source)
    short_tokenizer(source, 96)
    path = described_class.quantize(source, to: File.join(@directory, "m.gguf"), type: "mxfp4_moe")
    experts = Candle::Weights.open(path).info("blk.0.ffn_gate_exps.weight")
    expect(experts.values_at(:dtype, :shape)).to eq([:mxfp4, [3, 96, 64]])
    found, wanted = [path, source].map do |from|
      llm = Candle::LLM.from_pretrained(from, device: "cpu")
      llm.logprobs("Hello,World!").filter_map { |entry| entry[:logprob] }
    end
    expect(found.size).to be > 5
    expect(worst(found, wanted)).to be < 0.05
  end

  describe "checkpoints that other libraries quantized" do
    # The fixture with a tokenizer of as many tokens.
    let(:source) do
      path = File.join(@directory, "gptq")
      FileUtils.cp_r(quantized("gptq"), path)
      FileUtils.cp(%w[tokenizer.json tokenizer_config.json].map { |file| File.join(decoder("llama"), file) }, path)
      path
    end

    it "are the model that their dense weights are" do
      dense = described_class.convert(source, to: File.join(@directory, "dense"), dtype: "f32")
      expect(worst(logprobs(source), logprobs(dense))).to be < 1e-3
    end

    it "say what stays quantized and what was expanded" do
      kernels = Candle::LLM.from_pretrained(source, device: "cpu").device_report[:kernels]
      expect(kernels["linear"]).to include("q4_0", "q5_0", "q8_0")
      expect(kernels["expanded_weights"]).to be_nil
      path = File.join(@directory, "hqq")
      FileUtils.cp_r(quantized("hqq"), path)
      FileUtils.cp(File.join(source, "tokenizer.json"), path)
      kernels = Candle::LLM.from_pretrained(path, device: "cpu").device_report[:kernels]
      expect(kernels["linear"]).to include("int4", "int4_16", "int4_32")
      # Groups along axis 0 of 160 rows, of which 64 have a scale in common.
      expect(kernels["expanded_weights"]).to eq("hqq as f32")
      path = File.join(@directory, "hqq_columns")
      FileUtils.cp_r(quantized("hqq_columns"), path)
      FileUtils.cp(File.join(source, "tokenizer.json"), path)
      kernels = Candle::LLM.from_pretrained(path, device: "cpu").device_report[:kernels]
      expect(kernels["linear"]).to include("int4", "int8")
    end

    it "keep what bitsandbytes rounds to 16 bits" do
      path = File.join(@directory, "bitsandbytes")
      FileUtils.cp_r(quantized("bitsandbytes"), path)
      FileUtils.cp(File.join(source, "tokenizer.json"), path)
      kernels = Candle::LLM.from_pretrained(path, device: "cpu").device_report[:kernels]
      expect(kernels["linear"]).to include("nf4_bf16", "nf4_f16", "fp4_bf16")
      # Rows of 160 bytes end within a group of 64.
      expect(kernels["linear"]).to include("int8")
      expect(kernels["expanded_weights"]).to be_nil
    end

    it "embed texts too" do
      model = Candle::EmbeddingModel.from_pretrained(source, device: "cpu")
      dense = described_class.convert(source, to: File.join(@directory, "dense"), dtype: "f32")
      other = Candle::EmbeddingModel.from_pretrained(dense, device: "cpu")
      expect(model.similarity(model.embed(text), other.embed(text))).to be > 0.9999
    end
  end
end
