# frozen_string_literal: true

RSpec.describe Candle::SupportedModels do
  let(:models) { Candle.supported_models }

  def type(name) = models.find { |model| model[:model_type] == name }

  it "lists each type once, sorted, with what it is for" do
    types = models.map { |model| model[:model_type] }
    expect(types).to eq(types.uniq.sort)
    expect(models).to all(include(devices: %w[cpu cuda metal], tasks: be_any, formats: start_with("safetensors")))
    expect(models.flat_map { |model| model[:tasks] }.uniq - Candle::ModelKind::CLASSES.keys).to be_empty
  end

  it "knows the shapes apart" do
    tasks = %i[embedding reranker classifier ner masked_lm]
    expect(type("bert")).to include(tasks: tasks, architectures: include("bert"))
    expect(type("gpt_oss")).to include(tasks: %i[llm embedding reranker classifier])
    expect(type("t5")[:tasks]).to eq(%i[embedding seq2seq])
    expect(type("qwen2_vl")[:tasks]).to include(:llm, :vlm)
    expect(type("siglip")[:tasks]).to eq(%i[clip])
    expect(type("siglip_vision_model")).to be_nil
  end

  it "lists the types of all tiny decoders" do
    paths = Dir[File.expand_path("../fixtures/tiny/{decoders,seq2seq}/*/config.json", __dir__)]
    missing = paths.map { |path| JSON.parse(File.read(path))["model_type"] }.reject { |name| type(name) }
    expect([paths.size, missing]).to match([be > 20, be_empty])
  end

  it "names the closest type where it knows none" do
    Dir.mktmpdir do |folder|
      config = { model_type: "qwen9", architectures: ["Qwen9ForCausalLM"] }
      File.write(File.join(folder, "config.json"), JSON.generate(config))
      FileUtils.cp(File.join(TinyModels.path("decoders/llama"), "model.safetensors"), folder)
      FileUtils.cp(File.join(TinyModels.path("decoders/llama"), "tokenizer.json"), folder)
      message = /"qwen9" is not a language model that red-candle \S+ can run\. The closest it runs is "qwen\d".*newer/
      expect { Candle::LLM.from_pretrained(folder) }.to raise_error(Candle::UnsupportedModelError, message)
    end
  end
end
