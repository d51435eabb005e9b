# frozen_string_literal: true

require "stringio"
require "tmpdir"

# Files laid out as llama.cpp's converter lays them out, against the checkpoints that they were made from.
RSpec.describe "GGUF language models" do
  greedy = Candle::GenerationConfig.deterministic(max_length: 24)
  # Their files do not say that a window slides.
  windowless = %w[mistral starcoder2]
  # Without a checkpoint of their own beside them.
  others = %w[quantized qwen2-split gpt-oss-mxfp4]
  names = Dir.children(TinyModels.path("gguf-decoders")).sort - others

  def load(name, **options)
    Candle::LLM.from_pretrained(TinyModels.path(name), device: "cpu", **options)
  end

  (names - windowless).each do |name|
    it "#{name} reads, says and ends as its checkpoint" do
      file = load("gguf-decoders/#{name}")
      checkpoint = load("decoders/#{name}")
      text = "The dog is in the house, yes: 東京 😀 no."
      expect(file.tokenizer.encode(text)).to eq(checkpoint.tokenizer.encode(text))
      expect(file.complete(text, config: greedy).token_ids).to eq(checkpoint.complete(text, config: greedy).token_ids)
      expect(file.logprobs(text).map { |entry| entry[:logprob] || 0 })
        .to be_near(checkpoint.logprobs(text).map { |entry| entry[:logprob] || 0 }, 1e-3)
      expect(file.model_eos_tokens).to eq(checkpoint.model_eos_tokens)
      expect(file.context_length).to eq(checkpoint.context_length)
    end
  end

  it "uses the file's own chat template" do
    messages = [{ role: "user", content: "the dog" }]
    expect(load("gguf-decoders/qwen2").apply_chat_template(messages)).to eq("<user>the dog\n<assistant>")
  end

  it "reads a model that is split into parts" do
    whole = load("gguf-decoders/qwen2").generate("the dog", config: greedy)
    split = load("gguf-decoders/qwen2-split")
    expect(split.model_info[:files].size).to eq(3)
    expect(split.model_eos_tokens).to contain_exactly("</s>", "<unk>")
    expect(split.generate("the dog", config: greedy)).to eq(whole)
    first = File.join(TinyModels.path("gguf-decoders/qwen2-split"), "model-00001-of-00003.gguf")
    expect(Candle::LLM.from_pretrained(first).generate("the dog", config: greedy)).to eq(whole)
    Dir.mktmpdir do |directory|
      FileUtils.cp(first, directory)
      expect { Candle::LLM.from_pretrained(directory) }.to raise_error(Candle::ModelNotFoundError, /00002-of-00003/)
    end
  end

  describe "of several in a directory" do
    around do |example|
      Dir.mktmpdir do |directory|
        @directory = directory
        FileUtils.cp(File.join(TinyModels.path("gguf-decoders/qwen2"), "model.gguf"), "#{directory}/m.Q8_0.gguf")
        FileUtils.cp(File.join(TinyModels.path("gguf-decoders/llama"), "model.gguf"), "#{directory}/m.Q4_K_M.gguf")
        example.run
      end
    end

    it "picks the middle one and logs it, or the one that is asked for" do
      log = StringIO.new
      logger = Candle.logger
      Candle.logger = Logger.new(log)
      expect(Candle::LLM.from_pretrained(@directory).model_info[:family]).to eq("llama")
      expect(log.string).to include("m.Q4_K_M.gguf of 2 GGUF files")
      expect(Candle::LLM.from_pretrained(@directory, gguf_file: "m.Q8_0.gguf").model_info[:family]).to eq("qwen2")
      expect { Candle::LLM.from_pretrained(@directory, gguf_file: "m.Q2_K.gguf") }
        .to raise_error(Candle::ModelNotFoundError, /m\.Q2_K\.gguf.*m\.Q4_K_M\.gguf, m\.Q8_0\.gguf/)
    ensure
      Candle.logger = logger
    end
  end

  it "computes with every type of block as with the numbers that they stand for" do
    weights = Candle::Weights.open(File.join(TinyModels.path("gguf-decoders/quantized"), "model.gguf"))
    kinds = weights.map { |_, info| info[:dtype].to_s }
    expect(kinds.uniq).to match_array(%w[q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k f16 f32])
    record = TinyModels.record("gguf-decoders/quantized")
    reference = Candle::Weights.open(File.join(TinyModels.path("gguf-decoders/quantized"), "expected.safetensors"))
    llm = load("gguf-decoders/quantized")
    record["sequences"].each_with_index do |ids, index|
      expect(llm.__send__(:_logprobs, ids, nil)).to be_near(reference.tensor("logprobs.#{index}").to_a, 0.1)
    end
  end
end
