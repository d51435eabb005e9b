# frozen_string_literal: true

RSpec.describe "One-liners" do
  around do |example|
    models = Candle.instance_variable_get(:@shortcut_models)
    kept = models.dup
    models.clear
    example.run
  ensure
    models.replace(kept)
  end

  it "embed with the default model, loaded once" do
    model = Candle::EmbeddingModel.from_pretrained(TinyModels.path("bert-sentence"), device: "cpu")
    expect(Candle::EmbeddingModel).to receive(:from_pretrained).with(no_args).once.and_return(model)
    expect(Candle.embed("fox")).to eq(model.embed("fox"))
    expect(Candle.embed(%w[fox dog], dimensions: 4)).to eq(model.embed(%w[fox dog], dimensions: 4))
  end

  it "embed with another model, without loading the default" do
    path = TinyModels.path("bert-sentence")
    model = Candle::EmbeddingModel.from_pretrained(path, device: "cpu")
    expect(Candle::EmbeddingModel).to receive(:from_pretrained).with(path).once.and_return(model)
    2.times { expect(Candle.embed("fox", model: path)).to eq(model.embed("fox")) }
    expect(Candle.embed("fox", model: model)).to eq(model.embed("fox"))
  end

  it "search in two stages" do
    embedder = Candle::EmbeddingModel.from_pretrained(TinyModels.path("bert-sentence"), device: "cpu")
    reranker = Candle::Reranker.from_pretrained(TinyModels.path("bert-reranker"), device: "cpu")
    documents = ["the lazy dog", "hello world", "paris is the capital", "the quick fox"]
    options = { embedder: embedder, reranker: reranker }
    found = Candle.search("the dog", documents, top_k: 2, candidates: 3, **options)
    first = embedder.search("the dog", documents, top_k: 3)
    expected = reranker.rerank("the dog", first.map { |hit| hit[:text] }, top_k: 2)
    expect(found.map { |hit| hit.slice(:text, :score) }).to eq(expected.map { |hit| hit.slice(:text, :score) })
    expect(found).to all(satisfy { |hit| documents[hit[:index]] == hit[:text] })
    expect(Candle.search("the dog", documents, top_k: 1, embedder: embedder, reranker: false))
      .to eq(embedder.search("the dog", documents, top_k: 1))
    expect(Candle.search("the dog", [], **options)).to eq([])
    expect { Candle.search("the dog", [1], **options) }.to raise_error(Candle::InvalidInputError, /documents\[0\]/)
  end

  it "rerank with the default model, loaded once" do
    model = Candle::Reranker.from_pretrained(TinyModels.path("bert-reranker"), device: "cpu")
    expect(Candle::Reranker).to receive(:from_pretrained).with(no_args).once.and_return(model)
    expect(Candle.rerank("fox", %w[fox dog])).to eq(model.rerank("fox", %w[fox dog]))
    expect(Candle.rerank("fox", %w[fox dog], top_k: 1).size).to eq(1)
  end

  it "chat with the default model, loaded once" do
    model = Candle::LLM.from_pretrained(TinyModels.path("gguf-decoders/qwen2"), device: "cpu")
    expect(Candle::LLM).to receive(:from_pretrained).with(no_args).once.and_return(model)
    greedy = Candle::GenerationConfig.deterministic(max_length: 8)
    answer = model.chat([{ role: "user", content: "the dog" }], config: greedy)
    expect(Candle.chat("the dog", config: greedy)).to eq(answer)
    expect(Candle.chat([{ "role" => "user", "content" => "the dog" }], config: greedy)).to eq(answer)
    pieces = []
    expect(Candle.chat("the dog", config: greedy) { |piece| pieces << piece }).to eq(answer)
    expect(pieces.join).to eq(answer)
  end
end
