# frozen_string_literal: true

require "stringio"

# What programs written for 1.8 call.
RSpec.describe "Names of 1.8" do
  let(:log) { StringIO.new }

  around do |example|
    previous = Candle.logger
    said = Candle::Deprecation.instance_variable_get(:@said)
    kept = said.dup
    said.clear
    Candle.logger = Logger.new(log)
    example.run
  ensure
    Candle.logger = previous
    said.replace(kept)
  end

  let(:llm) { Candle::LLM.from_pretrained(TinyModels.path("decoders/llama"), device: "cpu") }

  def once(&block)
    2.times(&block)
    expect(log.string.scan("deprecated").size).to eq(1)
    expect(log.string).to include("docs/guides/migrating.md")
  end

  describe "Candle.build_info and BuildInfo.summary" do
    it "have the published keys, by String and Symbol" do
      %w[cuda cudnn metal mkl accelerate].each do |name|
        key = "#{name}_available"
        expected = Candle::BuildInfo.public_send("#{key}?")
        expect(Candle.build_info[key]).to be(expected)
        expect(Candle::BuildInfo.summary[key.to_sym]).to be(expected)
        expect(Candle.build_info.fetch(key)).to be(expected)
        expect(Candle.build_info).to have_key(key).and have_key(key.to_sym)
      end
      expect(Candle::BuildInfo.summary[:available_backends]).to include("CPU")
      expect(Candle::BuildInfo.summary[:available_backends].include?("CUDA")).to be(Candle::BuildInfo.cuda_available?)
      expect(Candle.build_info["default_device"]).to eq(Candle::Device.best.to_s)
    end

    it "are looked into like any Hash" do
      info = Candle.build_info
      expect(info.values_at("version", :version)).to eq([Candle::VERSION] * 2)
      expect(info.dig("available_backends", -1)).to eq("CPU")
      expect(info.slice("threads").values).to eq([Candle.num_threads])
      expect(info["no such key"]).to be_nil
      expect(info.fetch("no such key", 3)).to eq(3)
      expect { info.fetch("no such key") }.to raise_error(KeyError)
    end
  end

  it "Utils.cuda_is_available, has_mkl and has_accelerate answer, and name what is better once" do
    once { expect(Candle::Utils.cuda_is_available).to be(Candle::BuildInfo.cuda_available?) }
    expect(log.string).to include("use BuildInfo.cuda_available? instead")
    expect(Candle::Utils.has_mkl).to be(Candle::BuildInfo.mkl_available?)
    expect(Candle::Utils.has_accelerate).to be(Candle::BuildInfo.accelerate_available?)
  end

  describe "LLM#options" do
    it "has String keys" do
      options = llm.options
      expect(options).to include("model_id" => TinyModels.path("decoders/llama"), "model_type" => "Llama",
                                 "device" => "cpu", "architecture" => "LlamaForCausalLM",
                                 "tokenizer_source" => TinyModels.path("decoders/llama"))
      expect(options.keys).to all(be_a(String))
      expect(options["eos_token_id"]).to eq(llm.tokenizer.eos_token_ids.first)
      expect(options[:model_type]).to eq("Llama")
      expect(options).not_to have_key("gguf_file")
    end

    it "tells the file of a GGUF model" do
      directory = TinyModels.path("gguf-decoders")
      options = Candle::LLM.from_pretrained(File.join(directory, "llama"), device: "cpu").options
      expect(options).to include("model_type" => "QuantizedGGUF", "base_model" => File.join(directory, "llama"),
                                 "gguf_file" => end_with(".gguf"))
    end

    it "names the tokenizer that was given" do
      given = TinyModels.path("decoders/qwen2")
      options = Candle::LLM.from_pretrained(TinyModels.path("decoders/llama"), tokenizer: given, device: "cpu").options
      expect(options["tokenizer_source"]).to eq(given)
    end
  end

  it "GenerationConfig#seed repeats a run" do
    config = Candle::GenerationConfig.balanced(max_length: 12, temperature: 1.0)
    texts = Array.new(2) { llm.generate("the", config: config) }
    expect(texts.uniq.size).to eq(1)
    expect(llm.generate("the", max_length: 12, temperature: 1.0, seed: config.seed)).to eq(texts.first)
  end

  it "debug_tokens shows each token with its id, streamed and at once" do
    config = Candle::GenerationConfig.deterministic(max_length: 3, debug_tokens: true)
    ids = llm.complete("the dog", config: config).token_ids
    expected = ids.map { |id| "[#{id}:#{llm.tokenizer.decode([id])}]" }.join
    expect(llm.generate("the dog", config: config)).to eq(expected)
    expect(llm.generate_stream("the dog", config: config).to_a.join).to eq(expected)
    expect(llm.generate_structured("x", schema: { type: "boolean" }, debug_tokens: true)).to be(true).or be(false)
  end

  it "cached_eos_token is eos_token" do
    once { expect(llm.cached_eos_token).to eq(llm.eos_token) }
  end

  it "TOKENIZER_REGISTRY is what register_tokenizer fills" do
    Candle::LLM.register_tokenizer("someone/some-model", "someone/a-tokenizer")
    expect(Candle::LLM::TOKENIZER_REGISTRY["someone/some-model"]).to eq("someone/a-tokenizer")
    expect(Candle::LLM.guess_tokenizer("someone/some-model")).to eq("someone/a-tokenizer")
    expect(Candle::LLM.guess_tokenizer("TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF"))
      .to eq("TinyLlama/TinyLlama-1.1B-Chat-v1.0")
  ensure
    Candle::LLM::TOKENIZER_REGISTRY.delete("someone/some-model")
  end

  it "EmbeddingModel::DEFAULT_TOKENIZER_PATH names a tokenizer" do
    expect(Candle::EmbeddingModel::DEFAULT_TOKENIZER_PATH).to match(%r{\A[\w-]+/[\w.-]+\z})
  end

  it "rerank_with_options gives rows" do
    reranker = Candle::Reranker.from_pretrained(TinyModels.path("bert-reranker"), device: "cpu")
    documents = ["the lazy dog", "paris is the capital"]
    expected = reranker.rerank("capital?", documents, pooling_method: "cls", apply_sigmoid: false)
    once do
      expect(reranker.rerank_with_options("capital?", documents, "cls", false))
        .to eq(expected.map { |hit| [hit[:text], hit[:score], hit[:doc_id]] })
    end
  end

  describe "StructuredConstraint" do
    it "is made for a model that it needs no more" do
      schema = { type: "boolean" }
      once do
        expect(Candle::StructuredConstraint.from_schema_with_model(JSON.generate(schema), "any/model"))
          .to eq(Candle::StructuredConstraint.from_schema(schema))
      end
      expect(Candle::StructuredConstraint.from_regex_with_model("a|b", "any/model"))
        .to eq(Candle::StructuredConstraint.from_regex(/a|b/))
    end

    it "generate_structured takes warn_on_parse_error" do
      [true, false].each do |value|
        found = llm.generate_structured("x", schema: { type: "boolean" }, temperature: 0.1, max_length: 20,
                                             warn_on_parse_error: value, reset_cache: true)
        expect(found).to be(true).or be(false)
      end
    end
  end

  describe "new" do
    it "loads a model as from_pretrained does" do
      { Candle::NER => "bert-token", Candle::Classifier => "bert-sequence", Candle::MaskedLM => "bert-masked",
        Candle::LLM => "decoders/llama", Candle::EmbeddingModel => "bert-sentence",
        Candle::Reranker => "bert-reranker" }.each do |klass, name|
        path = TinyModels.path(name)
        expect(klass.new(path, device: "cpu")).to be_a(klass).and have_attributes(model_id: path)
        expect(klass.new(model_path: path, device: "cpu").model_id).to eq(path)
      end
    end

    it "says what to do where there is no default model" do
      expect { Candle::NER.new }
        .to raise_error(ArgumentError, /Candle::NER needs a model: use Candle::NER.from_pretrained/)
    end

    it "gives a usable object of the other classes" do
      expect(Candle::Device.new("cpu")).to eq(Candle::Device.cpu)
      expect(Candle::DType.new(:f32)).to eq(:f32)
      path = TinyModels.path("bert")
      expect(Candle::Tokenizer.new(path).encode("fox")).to eq(Candle::Tokenizer.from_pretrained(path).encode("fox"))
      expect(Candle::Tokenizer.new(File.join(path, "tokenizer.json")).vocab_size).to be_positive
      expect(Candle::Weights.new(path).size).to be_positive
    end
  end

  it "to_s of a model is inspect" do
    expect(llm.to_s).to eq(llm.inspect)
    ner = Candle::NER.from_pretrained(TinyModels.path("bert-token"), device: "cpu")
    expect("#{ner}").to eq(ner.inspect) # rubocop:disable Style/RedundantInterpolation
  end

  it "NER.suggested_models has the published keys" do
    models = Candle::NER.suggested_models
    expect(models.keys).to include(:general, :biomedical, :multilingual, :clinical, :scientific)
    expect(models.values).to all(include(model: match(%r{/}), note: be_a(String)))
    expect(models[:general]).to include(model: "Babelscape/wikineural-multilingual-ner", note: /tokenizer/)
  end
end
