# frozen_string_literal: true

RSpec.describe Candle::Hints do
  let(:embedder) { ServedModels.models["embedder"] }
  let(:llm) { ServedModels.models["llm"] }

  it "says which keyword was meant" do
    { normalise: /:normalise\. Did you mean normalize:\?/, batch_size: /Use batch_tokens: instead of batch_size:/,
      normalize_embeddings: /Use normalize:/, convert_to_tensor: /Instead of convert_to_tensor: use as: :tensor/,
      show_progress_bar: /Use progress:/, zzz: /\Aunknown keyword: :zzz\z/ }.each do |name, message|
      expect { embedder.embed("a", name => 1) }.to raise_error(ArgumentError, message)
    end
    expect { ServedModels.models["reranker"].rerank("a", ["b"], top_n: 1) }.to raise_error(ArgumentError, /Use top_k:/)
  end

  it "says which option of a generation was meant" do
    { stop: /unknown generation option stop\. Use stop_sequences: instead of stop:/,
      stream: /Instead of stream: pass a block or call generate_stream or chat_stream/,
      temprature: /Did you mean temperature:\?/, repeat_penalty: /Use repetition_penalty:/,
      num_predict: /Use max_length:/, response_format: /Use schema:/ }.each do |name, message|
      expect { llm.generate("a", name => 1) }.to raise_error(ArgumentError, message)
      expect { llm.chat([{ role: "user", content: "a" }], name => 1) }.to raise_error(ArgumentError, message)
    end
    expect { Candle::GenerationConfig.new(topp: 1) }.to raise_error(ArgumentError, /Did you mean top_p:\?.*Known are/)
  end

  it "says which option of loading was meant, for every class" do
    { EmbeddingModel: "bert-sentence", Reranker: "bert-reranker", NER: "bert-token", Classifier: "bert-sequence",
      MaskedLM: "bert-masked", LLM: "decoders/llama", SparseEmbeddingModel: "splade", LateInteractionModel: "colbert",
      Seq2Seq: "seq2seq/t5", CLIP: "clip", VLM: "llava", ImageEmbeddingModel: "dinov2",
      ImageClassifier: "vit-classifier" }.each do |name, model|
      load = ->(**options) { Candle.const_get(name).from_pretrained(TinyModels.path(model), **options) }
      expect { load.call(torch_dtype: :f32) }.to raise_error(ArgumentError, /:torch_dtype\. Use dtype: instead/)
      expect { load.call(devise: "cpu") }.to raise_error(ArgumentError, /Did you mean device:\?/)
      expect { load.call(trust_remote_code: true) }.to raise_error(ArgumentError, /leave it out/)
    end
  end

  it "refuses an option that is there by two names" do
    expect { llm.generate("a", max_length: 3, max_tokens: 5) }
      .to raise_error(ArgumentError, "max_length and max_tokens are names of the same option: pass one of them")
    expect { Candle::GenerationConfig.new("max_new_tokens" => 3, max_tokens: 3) }.to raise_error(ArgumentError, /same/)
    expect(Candle::GenerationConfig.new({ max_length: 3 }, max_tokens: 5).max_length).to eq(5)
    expect(llm.generate("a", config: { max_length: 9 }, max_tokens: 0)).to eq("")
  end

  it "writes articles" do
    { "Array" => "an Array", "String" => "a String", "Object" => "an Object", "LLM" => "an LLM", "NER" => "an NER",
      "URI::HTTP" => "a URI::HTTP", "embedding model" => "an embedding model", "reranker" => "a reranker",
      "image classifier" => "an image classifier", "Hash" => "a Hash", "Unknown" => "an Unknown",
      "Unit" => "a Unit" }.each do |noun, with_article|
      expect(Candle::Arguments.one(noun)).to eq(with_article)
    end
    expect { embedder.embed([["a"]]) }.to raise_error(Candle::InvalidInputError, /not an Array/)
  end
end
