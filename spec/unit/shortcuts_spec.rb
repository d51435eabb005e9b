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
