# frozen_string_literal: true

# Every shape of model on the software device against the CPU; run by `rake metal:specs`.
RSpec.describe "A model on a Metal device" do
  greedy = Candle::GenerationConfig.deterministic(max_length: 64)
  prompt = "the quick brown"

  let(:pictures) { TinyModels.pictures }

  # What a block makes of a model on the CPU and on Metal, both in f32.
  def both(klass, name, **options)
    %w[cpu metal].map do |device|
      yield klass.from_pretrained(TinyModels.path(name), device:, dtype: :f32, **options)
    end
  end

  def expect_near(tolerance = 1e-4, &block)
    cpu, metal = yield
    expect(metal).to be_near(cpu, tolerance), block.source_location.join(":")
  end

  it "of a GGUF file writes 64 tokens as the CPU does" do
    (Dir.children(TinyModels.path("gguf-decoders")) - %w[quantized]).sort.each do |name|
      cpu, metal = both(Candle::LLM, "gguf-decoders/#{name}") { |llm| llm.generate(prompt, config: greedy) }
      expect(metal).to eq(cpu), name
    end
  end

  it "of a GGUF file embeds as the CPU does" do
    texts = ["a", "the lazy dog", "the quick brown fox jumps over the lazy dog " * 3]
    %w[gguf-bert gguf-bert-q8_0 gguf-jina-bert gguf-nomic-bert gguf-qwen3-embedding].each do |name|
      expect_near(1e-3) { both(Candle::EmbeddingModel, name) { |model| model.embed(texts) } }
    end
  end

  it "computes with every type of block, whose bytes stay as they are" do
    record = TinyModels.record("gguf-decoders/quantized")
    cpu, metal = both(Candle::LLM, "gguf-decoders/quantized") do |llm|
      [record["sequences"].map { |ids| llm.__send__(:_logprobs, ids, nil) }, llm.model_info[:weight_bytes],
       llm.device_report[:kernels]["linear"]]
    end
    expect(metal[0]).to be_near(cpu[0], 0.05)
    { f16: 0.1, bf16: 0.4 }.each do |dtype, tolerance|
      llm = Candle::LLM.from_pretrained(TinyModels.path("gguf-decoders/quantized"), device: "metal", dtype:)
      found = record["sequences"].map { |ids| llm.__send__(:_logprobs, ids, nil) }
      expect(found).to be_near(cpu[0], tolerance), dtype.to_s
    end
    expect(metal[1]).to be_within(0.1 * cpu[1]).of(cpu[1])
    %w[q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k].each { |kind| expect(metal[2]).to include("metal #{kind}") }
  end

  it "takes adapters, on dense and on GGUF bases" do
    %w[llama llama-patterns llama-embeddings qwen2 phi3 gpt2 gpt-neox].each do |name|
      record = TinyModels.record("adapters/#{name}")
      %w[decoders gguf-decoders].each do |kind|
        adapters = { it: TinyModels.path("adapters/#{name}") }
        expect_near(1e-3) do
          both(Candle::LLM, "#{kind}/#{record["base"]}", adapters:) do |llm|
            llm.__send__(:_logprobs, record["sequences"].last, "it")
          end
        end
      end
    end
  end

  it "refuses a DoRA adapter as the CPU does" do
    adapters = { it: TinyModels.path("adapters/llama-dora") }
    expect { Candle::LLM.from_pretrained(TinyModels.path("decoders/llama"), device: "metal", adapters:) }
      .to raise_error(Candle::UnsupportedModelError, /use_dora/)
  end

  it "draws of its likeliest tokens what it draws of all, and what the CPU draws" do
    config = Candle::GenerationConfig.balanced(max_length: 32, top_k: 12, seed: 5)
    configs = [config, config.with(temperature: 1.5, top_p: nil), config.with(min_p: 0.05, top_k: 3),
               config.with(top_k: nil), config.with(top_k: nil, top_p: nil), config.with(top_k: nil, min_p: 0.05),
               config.with(top_k: nil, top_p: nil, min_p: 0.1)]
    cpu, metal = both(Candle::LLM, "decoders/llama") do |llm|
      configs.map { |one| llm.complete(prompt, config: one).token_ids }
    end
    expect(metal).to eq(cpu)
    # Log probabilities need all logits.
    llm = Candle::LLM.from_pretrained(TinyModels.path("decoders/llama"), device: "metal", dtype: :f16)
    few, all = [nil, 0].map do |logprobs|
      configs.map { |one| llm.complete(prompt, config: one.with(logprobs:)).token_ids }
    end
    expect(few).to eq(all)
    expect(few.uniq.size).to eq(configs.size)
  end

  it "rewrites texts as the CPU does, with beams and without" do
    %w[t5 flan-t5 mt5 bart pegasus marian m2m100 nllb].each do |name|
      record = TinyModels.record("seq2seq/#{name}")
      [1, 3].each do |num_beams|
        cpu, metal = both(Candle::Seq2Seq, "seq2seq/#{name}") do |model|
          options = { max_length: 12, num_beams: }
          model.send(:completions_of, record["texts"], nil, options, to: record["target"]).map(&:token_ids)
        end
        expect(metal).to eq(cpu), "#{name}, #{num_beams} beams"
      end
    end
  end

  it "sees as the CPU does" do
    %w[clip siglip siglip2].each do |name|
      expect_near do
        both(Candle::CLIP, name) { |model| model.embed_image(pictures) + model.embed_text(["a fox", "the lazy dog"]) }
      end
    end
    %w[vit dinov2 dinov2-registers].each do |name|
      expect_near { both(Candle::ImageEmbeddingModel, name) { |model| model.embed(pictures) } }
    end
    %w[vit-classifier dinov2-classifier].each do |name|
      expect_near do
        both(Candle::ImageClassifier, name) { |model| model.classify(pictures).flatten.map { |entry| entry[:score] } }
      end
    end
  end

  it "talks about pictures as the CPU does" do
    %w[llava llava-next gemma3-vision qwen2-vl qwen2.5-vl smolvlm].each do |name|
      cpu, metal = both(Candle::VLM, name) { |vlm| vlm.ask(pictures.first, "what is it?", max_length: 12) }
      expect(metal).to eq(cpu), name
    end
  end

  it "weighs terms and compares token by token as the CPU does" do
    texts = ["the lazy dog", "a", "paris is the capital of france"]
    %w[splade splade-sum sparse-router sparse-static].each do |name|
      weights = both(Candle::SparseEmbeddingModel, name) { |model| model.embed(texts) }
      expect(weights.last.map(&:keys)).to eq(weights.first.map(&:keys)), name
      expect(weights.last.map(&:values)).to be_near(weights.first.map(&:values))
    end
    %w[colbert colbert-modernbert colbert-mpnet].each do |name|
      expect_near(1e-3) { both(Candle::LateInteractionModel, name) { |model| model.score("what is it?", texts) } }
    end
  end

  it "keeps sessions, and texts that are written at the same time, apart" do
    prompts = ["the quick brown fox", "the quick brown dog jumps over the lazy", "a", "the quick"]
    answers = both(Candle::LLM, "gguf-decoders/qwen2") do |llm|
      alone = prompts.map { |text| llm.generate(text, config: greedy) }
      threads = prompts.map { |text| Thread.new { llm.generate(text, config: greedy, reset_cache: false) } }
      together = threads.map(&:value)
      session = llm.session
      [alone, together, %w[dog fox].map { |text| session.say(text, config: greedy, max_length: 8) }]
    end
    expect(answers.last).to eq(answers.first)
    expect(answers.last[1]).to eq(answers.last[0])
  end
end
