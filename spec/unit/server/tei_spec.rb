# frozen_string_literal: true

RSpec.describe Candle::Server::TEI do
  let(:server) { ServedModels.server }
  let(:models) { ServedModels.models }

  def ask_tei(path, **body) = post(server, path, body)

  it "embeds texts and tokens, always as a list" do
    model = models["embedder"]
    expect(ask_tei("/embed", inputs: "the dog").json).to be_near([model.embed("the dog")], 1e-6)
    expect(ask_tei("/embed", inputs: %w[a b], normalize: false, dimensions: 4).json)
      .to be_near(model.embed(%w[a b], normalize: false, dimensions: 4), 1e-6)
    ids = model.tokenizer.encode("the dog")
    expect(ask_tei("/embed", inputs: [ids]).json).to be_near([model.embed("the dog")], 1e-6)
  end

  it "cuts long texts only when it is told to" do
    refused = ask_tei("/embed", inputs: "dog " * 100)
    expect(refused).to have_attributes(status: 413, json: { "error" => /tokens/, "error_type" => "Validation" })
    expect(ask_tei("/embed", inputs: "dog " * 100, truncate: true).status).to eq(200)
  end

  it "gives a vector for each token" do
    found = ask_tei("/embed_all", inputs: ["the dog"]).json
    expect(found).to be_near(models["embedder"].embeddings("the dog").to_a, 1e-6)
  end

  it "weighs the tokens of texts" do
    model = models["sparse"]
    as_items = ->(weights) { weights.map { |index, value| { "index" => index, "value" => value } } }
    expect(ask_tei("/embed_sparse", inputs: "the dog").json).to eq([as_items.call(model.embed("the dog"))])
    expect(ask_tei("/embed_sparse", inputs: %w[a b]).json).to eq(model.embed(%w[a b]).map(&as_items))
    expect(ask_tei("/embed_sparse", inputs: "a", model: "sparse").status).to eq(200)
    expect(ask_tei("/embed_sparse", inputs: 7).status).to eq(413)
  end

  it "cuts long texts to weigh only when it is told to" do
    expect(ask_tei("/embed_sparse", inputs: "dog " * 100))
      .to have_attributes(status: 413, json: { "error" => /tokens/, "error_type" => "Validation" })
    expect(ask_tei("/embed_sparse", inputs: "dog " * 100, truncate: true).status).to eq(200)
  end

  it "says that no model makes sparse embeddings" do
    without = Candle::Server.new(models: models.slice("embedder"))
    expect(post(without, "/embed_sparse", inputs: "a")).to have_attributes(
      status: 424, json: { "error" => /sparse/, "error_type" => "Backend" }
    )
  end

  it "ranks texts" do
    direct = models["reranker"].rerank("dog", %w[cat dog])
    found = ask_tei("/rerank", query: "dog", texts: %w[cat dog], return_text: true).json
    expect(found.map { |item| item.values_at("index", "text") }).to eq(direct.map do |item|
                                                                         item.values_at(:doc_id, :text)
                                                                       end)
    raw = ask_tei("/rerank", query: "dog", texts: %w[cat dog], raw_scores: true).json
    expect(raw.sort_by { |item| item["index"] }.map { |item| item["score"] })
      .to be_near(models["reranker"].score("dog", %w[cat dog]), 1e-6)
    expect(raw.first).not_to have_key("text")
  end

  it "classifies a text, a pair and a batch" do
    model = models["classifier"]
    as_json = ->(value) { JSON.parse(JSON.generate(value)) }
    expect(ask_tei("/predict", inputs: "a dog").json).to eq(as_json.call(model.classify("a dog")))
    expect(ask_tei("/predict", inputs: %w[a b]).json).to eq(as_json.call(model.classify("a", pair: "b")))
    expect(ask_tei("/predict", inputs: [["a"], %w[a b]]).json)
      .to eq(as_json.call([model.classify("a"), model.classify("a", pair: "b")]))
    expect(ask_tei("/predict", inputs: [%w[a b c]]).status).to eq(413)
  end

  it "compares sentences" do
    scores = ask_tei("/similarity", inputs: { source_sentence: "a dog", sentences: ["a dog", "hello"] }).json
    expect(scores).to be_near([1.0, models["embedder"].similarity("a dog", "hello")], 1e-5)
    expect(ask_tei("/similarity", inputs: { sentences: ["a"] }).status).to eq(413)
  end

  it "tokenizes and decodes" do
    tokens = ask_tei("/tokenize", inputs: "the dog", model: "embedder").json.first
    expect(tokens.map { |token| token["special"] }).to eq([true, false, false, true])
    expect(tokens[2]).to include("text" => "dog", "start" => 4, "stop" => 7)
    ids = tokens.map { |token| token["id"] }
    expect(ask_tei("/decode", ids: [ids, ids], model: "embedder").json).to eq(["the dog", "the dog"])
    expect(ask_tei("/decode", ids: ids, model: "embedder", skip_special_tokens: false).json.first).to include("[CLS]")
  end

  it "answers at the root by what is sent" do
    expect(ask_tei("/", query: "dog", texts: %w[cat dog]).json.size).to eq(2)
    expect(ask_tei("/", inputs: { source_sentence: "a", sentences: ["b"] }).json.size).to eq(1)
    classifier = Candle::Server.new(models: { "c" => models["classifier"] })
    expect(post(classifier, "/", { inputs: "a" }).json.first.first).to include("label", "score")
    ner = Candle::Server.new(models: { "n" => models["ner"] })
    expect(post(ner, "/", { inputs: "the dog live in Paris" }).json.first).to include("entity_group", "word", "start")
  end

  it "does the task of the model that is asked at the root" do
    at_root = ->(**body) { ask_tei("/", **body).json }
    expect(at_root.call(model: "embedder", inputs: "a dog").first.size).to eq(32)
    expect(at_root.call(model: "classifier", inputs: "a dog").first.first).to include("label", "score")
    expect(at_root.call(model: "ner", inputs: "the dog live in Paris").first).to include("entity_group")
    expect(at_root.call(model: "sparse", inputs: "a dog")).to eq(ask_tei("/embed_sparse", inputs: "a dog").json)
    expect(at_root.call(model: "reranker", inputs: "a dog")).to include("error" => "query is missing")
    text = models["llm"].generate("the", max_length: 3, temperature: 0)
    asked = { model: "llm", inputs: "the", parameters: { max_new_tokens: 3 } }
    expect(at_root.call(**asked)).to eq([{ "generated_text" => text }])
    asked[:parameters][:return_full_text] = true
    expect(at_root.call(**asked)).to eq([{ "generated_text" => "the#{text}" }])
  end

  it "does no other task than it is asked for at the root" do
    vectors_first = Candle::Server.new(models: models.slice("embedder", "classifier", "ner", "llm"), max_tokens: 8)
    at_root = ->(**body) { post(vectors_first, "/", body) }
    expect(at_root.call(inputs: "a dog").json.first.size).to eq(32)
    shot = at_root.call(inputs: "a dog", parameters: { candidate_labels: %w[animal city] }).json
    expect(shot.map { |one| one["label"] }).to match_array(%w[animal city])
    expect(shot.sum { |one| one["score"] }).to be_within(1e-5).of(1)
    expect(at_root.call(inputs: "the", parameters: { max_new_tokens: 2 }).json.first).to have_key("generated_text")
    entities = at_root.call(inputs: "the dog live in Paris", parameters: { aggregation_strategy: "simple" }).json
    expect(entities.first).to include("entity_group")
    expect(at_root.call(inputs: "a",
                        parameters: { function_to_apply: "softmax" }).json.first.first).to have_key("label")
    expect(at_root.call(inputs: "a", parameters: { targets: ["b"] }))
      .to have_attributes(status: 404,
                          json: hash_including("error" => /no model of the kind masked_lm; it has embedder/))
    expect(at_root.call(inputs: { question: "a",
                                  context: "b" }).json["error"]).to match(/source_sentence and sentences/)
    expect(at_root.call(query: "a", texts: ["b"]).json["error"]).to match(/no model of the kind reranker/)
    masked = Candle::Server.new(models: { "m" => TinyModels.path("bert-masked") })
    filled = post(masked, "/", { inputs: "the [MASK] dog", parameters: { top_k: 2 } }).json
    expect(filled).to match([include("score", "token", "token_str", "sequence")] * 2)
  end

  it "tells what it serves, by name and not by path" do
    info = get(server, "/info")
    expect(info.json).to include("model_id" => "llm", "version" => Candle::VERSION, "max_client_batch_size" => 1024)
    expect(info.json["models"].map { |model| model["kind"] }).to eq(%w[llm embedding reranker classifier ner sparse])
    expect(info.text).not_to include(TinyModels::ROOT)
  end

  it "ranks as Cohere and Jina do" do
    body = { model: "reranker", query: "dog", documents: ["cat", { text: "dog" }], top_n: 1, return_documents: true }
    answer = post(server, "/v1/rerank", body).json
    best = models["reranker"].rerank("dog", %w[cat dog]).first
    expect(answer["results"]).to eq([{ "index" => best[:doc_id], "relevance_score" => best[:score],
                                       "document" => { "text" => best[:text] } }])
    expect(answer).to include("model" => "reranker", "usage" => hash_including("total_tokens" => be > 4),
                              "meta" => Hash)
    expect(post(server, "/v2/rerank",
                body.merge(documents: [])).json).to include("message" => "documents must not be empty")
    expect(post(server, "/v1/rerank", body.merge(top_n: 0)).status).to eq(400)
  end

  it "serves plain embeddings and entities" do
    answer = post(server, "/api/v1/embed",
                  { texts: ["a dog"], model: "embedder", pooling: "cls", normalize: false }).json
    expect(answer["embeddings"]).to be_near(models["embedder"].embed(["a dog"], pooling: "cls", normalize: false), 1e-6)
    expect(answer).to include("dimension" => 32, "usage" => { "total_tokens" => 4, "duration_ms" => Float })
    text = "the dog live in Paris"
    found = post(server, "/api/v1/entities", { texts: [text], confidence_threshold: 0 }).json["entities"].first
    expect(found).to all(satisfy { |entity| text[entity["start"]...entity["end"]] == entity["text"] })
    expect(post(server, "/api/v1/embed", { texts: ["a"], pooling: "odd" })).to have_attributes(status: 400)
    expect(post(server, "/api/v1/entities", { texts: ["a"], confidence_threshold: 2 }).json["error"]).to match(/0 to 1/)
    expect(post(server, "/api/v1/embed", { texts: "a" }).json).to include("error" => "texts has the wrong type")
  end
end
