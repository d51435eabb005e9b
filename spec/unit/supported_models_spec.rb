# frozen_string_literal: true

RSpec.describe Candle::SupportedModels do
  let(:models) { Candle.supported_models }

  def type(name) = models.find { |model| model[:model_type] == name }

  # The classes that load a folder, as the tasks that they are for.
  def loaded(folder)
    tasks = Candle::ModelKind::CLASSES.select do |_, name|
      Candle.const_get(name).from_pretrained(folder, device: "cpu").close
      true
    rescue Candle::Error
      false
    end
    tasks.keys
  end

  it "lists each type once, sorted, with what it is for" do
    types = models.map { |model| model[:model_type] }
    expect(types).to eq(types.uniq.sort)
    expect(models).to all(include(tasks: be_any, formats: start_with("safetensors")))
    expect(models.flat_map { |model| model[:tasks] }.uniq - Candle::ModelKind::CLASSES.keys).to be_empty
  end

  it "lists the devices that this build can use" do
    expect(models.map { |model| model[:devices] }.uniq).to eq([Candle::BuildInfo.available_backends.map(&:downcase)])
    every = described_class.list(devices: described_class::DEVICES)
    expect(every.first[:devices]).to eq(%w[cpu cuda metal])
  end

  it "derives tasks from the heads that a family has names for" do
    tasks = %i[embedding reranker classifier ner masked_lm question_answering sparse late_interaction]
    expect(type("bert")).to include(tasks: match_array(tasks), architectures: include("bert"))
    expect(type("gpt_oss")).to include(tasks: %i[llm embedding reranker classifier ner])
    expect(type("t5")[:tasks]).to match_array(%i[embedding ner seq2seq late_interaction])
    expect(type("qwen2_vl")[:tasks]).to include(:llm, :vlm)
    expect(type("llava")[:tasks]).to match_array(%i[llm vlm document_reader])
    %w[siglip metaclip_2].each do |name|
      expect(type(name)[:tasks]).to eq(%i[clip image_embedding image_classifier])
    end
  end

  it "leaves out parts of other types, and lists a vision model that is a type of its own" do
    expect(%w[siglip_vision_model internvl_vision clip_text_model pixtral].filter_map { |name| type(name) }).to be_empty
    expect(type("aimv2_vision_model")[:tasks]).to eq(%i[image_embedding])
    expect(type("beit")[:tasks]).to eq(%i[image_embedding image_classifier])
  end

  it "tells projectors of mmproj files from the architectures of decoders" do
    expect(type("qwen3_vl")).to include(architectures: include("qwen3vl"), projectors: ["qwen3vl_merger"])
    expect(type("llava")).to include(architectures: [], projectors: include("mlp"), formats: include("gguf"))
    expect(type("llama")).to include(architectures: include("llama"), projectors: [])
    expect(type("paligemma")).to include(projectors: [], formats: %w[safetensors pytorch])
  end

  it "lists the tasks for which checkpoints load, and no others" do
    found = Hash.new { |all, name| all[name] = [] }
    folders = %w[bert-reranker bert-token bert-masked bert-question colbert llama-reranker qwen2-token mistral-sequence
                 bart-sequence seq2seq/marian vit-classifier dinov2 llava smolvlm gemma3-vision clip siglip]
    folders.each do |folder|
      path = TinyModels.path(folder)
      found[JSON.parse(File.read(File.join(path, "config.json")))["model_type"]] |= loaded(path)
    end
    expect(found["bert"]).to match_array(type("bert")[:tasks])
    wrong = found.reject { |name, tasks| (tasks - type(name)[:tasks]).empty? }
    expect([found.size, wrong]).to match([be > 12, be_empty])
  end

  it "lists the types of all tiny decoders" do
    paths = Dir[TinyModels.path("{decoders,seq2seq}/*/config.json")]
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
