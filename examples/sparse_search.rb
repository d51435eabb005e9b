# frozen_string_literal: true

# Search by words that a model weighs: what a text says, and what it means without saying it. The weights go into any
# index of words (Elasticsearch, OpenSearch, Qdrant, pgvector's sparsevec); here an inverted index in a Hash does.
require "candle"

# A checkpoint of this repository, which has learned nothing. In earnest: "naver/splade-v3", for example.
source = ENV.fetch("SPARSE_MODEL", File.expand_path("../spec/fixtures/tiny/splade", __dir__))
model = Candle::SparseEmbeddingModel.from_pretrained(source)

passages = ["the quick brown fox jumps over the lazy dog", "paris is the capital of france", "hello world"]

# Token id => the passages that have it, with their weights.
index = Hash.new { |hash, id| hash[id] = [] }
model.embed_document(passages, top_k: 64).each_with_index do |weights, passage|
  weights.each { |id, weight| index[id] << [passage, weight] }
end

question = "what is the capital of france"
scores = Hash.new(0.0)
model.embed_query(question).each do |id, weight|
  index.fetch(id, []).each { |passage, other| scores[passage] += weight * other }
end
best = scores.max_by(&:last)
puts format("%<question>s\n  %<score>.3f  %<text>s", question: question, score: best.last, text: passages[best.first])

# What the model itself finds, and which words of the passage count most.
hit = model.search(question, passages, top_k: 1).first
heaviest = model.embed(hit[:text], as: :tokens, top_k: 5)
puts heaviest.map { |token, weight| "#{token} #{weight.round(2)}" }.join(", ")
