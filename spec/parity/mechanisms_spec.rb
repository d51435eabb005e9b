# frozen_string_literal: true

# What every decoder gets without saying so, on one seeded checkpoint per mechanism: each feature must leave the greedy
# tokens as transformers has them.
RSpec.describe "Mechanisms of decoders" do
  names = %w[afmoe apertus bloom cohere2 deepseek_v3 deepseek_v32 diffllama ernie4_5_moe gemma3n_text gemma4_text
             gpt_oss hrm_text jetmoe laguna llama4_text longcat_flash olmo]
  # With layers that keep states: Mamba-2, experts behind it, short convolutions, Mamba, the delta rule, RWKV.
  stateful = %w[falcon_h1 granitemoehybrid lfm2 mamba qwen3_next rwkv]

  around do |example|
    SeededModels.checkpoint(example.metadata.fetch(:type_name)) do |folder|
      @folder = folder
      example.run
    end
  end

  let(:llm) { Candle::LLM.from_pretrained(@folder, device: "cpu", dtype: :f32, verify: true) }
  let(:config) { Candle::GenerationConfig.new(temperature: 0.0, max_length: expected.size) }
  let(:cases) { SeededModels.record(name).fetch("cases") }
  let(:prompt) { cases.last.fetch("prompt") }
  let(:expected) { cases.last.fetch("greedy") }

  def tokens(ids, **options) = llm.complete_ids(ids, "", config: config, **options).token_ids

  # An adapter of all matrices of the first layer's projections.
  def write_adapter(folder)
    wanted = /[._](0|blocks\.0)\..*(in_proj\w*|out_proj|receptance|output)\.weight\z/
    weights = SeededModels.record(name, "tensors.json")["tensors"].select { |tensor, _| tensor.match?(wanted) }
    tensors = weights.each_with_object({}) do |(tensor, given), all|
      lora = "base_model.model.#{tensor.delete_suffix(".weight")}.lora"
      outputs, inputs = given["shape"]
      all["#{lora}_A.weight"] = { "shape" => [2, inputs] }
      all["#{lora}_B.weight"] = { "shape" => [outputs, 2] }
    end
    tensors.each_value { |tensor| tensor.update("dtype" => "F32", "center" => 0.0, "spread" => 1.0) }
    File.write(File.join(folder, "adapter_config.json"), JSON.generate(peft_type: "LORA", r: 2, lora_alpha: 2))
    File.binwrite(File.join(folder, "adapter_model.safetensors"),
                  SeededModels.safetensors({ "seed" => 1, "tensors" => tensors }))
    folder
  end

  (names + stateful).each do |type|
    describe type, type_name: type do
      let(:name) { type }

      it "reuses prefixes, runs beside others and decodes speculatively with the same tokens" do
        first = llm.complete_ids(prompt, "", config: config)
        second = llm.complete_ids(prompt, "", config: config, reset_cache: false)
        expect([first.token_ids, second.token_ids]).to eq([expected, expected])
        # A prompt of less than a page has no state of its own.
        cached = stateful.include?(type) ? 0 : be_positive
        expect([first, second].map { |run| run.usage.cached_tokens }).to match([0, cached])
        beside = [prompt, cases.first.fetch("prompt"), prompt].map { |ids| Thread.new { tokens(ids) } }.map(&:value)
        expect(beside).to eq([expected, cases.first.fetch("greedy"), expected])
        expect(tokens(prompt, speculative: :lookup)).to eq(expected)
      end

      it "writes what a schema allows, keeps a session, and embeds texts with the same checkpoint" do
        schema = { type: "object", properties: { a: { enum: %w[x y] } }, required: %w[a], additionalProperties: false }
        expect(llm.generate_structured("a", schema: schema, max_length: 40)).to include("a" => match(/\A[xy]\z/))
        session = llm.session(chat_template: "{{ messages[-1].content }}")
        expect(session.say("a b", max_length: 4, temperature: 0.0)).to be_a(String)
        embedding = Candle::EmbeddingModel.from_pretrained(@folder, device: "cpu")
        expect(embedding.embedding("a b").to_a.flatten).to all(be_finite)
      end

      it "says where it computes, and passes its self-check" do
        report = llm.device_report
        expect(report).to include(actual: "cpu", dtype: "f32", fallbacks: be_empty)
        kernels = %w[mamba rwkv].include?(type) ? %w[linear] : %w[linear attention]
        expect(report[:kernels].transform_keys(&:to_s)).to include(*kernels)
        expect(llm.model_info).to include(verified: true)
      end
    end
  end

  stateful.each do |type|
    describe type, type_name: type do
      let(:name) { type }

      it "changes states by an adapter, alone and beside requests without one" do
        Dir.mktmpdir { |folder| llm.load_adapter(:other, write_adapter(folder)) }
        adapted = tokens(prompt, adapter: :other)
        expect(adapted).not_to eq(expected)
        beside = [:other, nil, :other, nil].map { |adapter| Thread.new { tokens(prompt, adapter: adapter) } }
        expect(beside.map(&:value)).to eq([adapted, expected, adapted, expected])
        expect(tokens(prompt, adapter: :other, speculative: :lookup)).to eq(adapted)
      end
    end
  end
end
