# frozen_string_literal: true

# Two stages: a quick search by vectors, then a careful reading by a reranker.
require "candle"

passages = [
  "Berlin is well known for its museums.",
  "Berlin had a population of 3,520,031 registered inhabitants in an area of 891.82 square kilometers.",
  "New York City is famous for the Metropolitan Museum of Art.",
  "The capital of France has about two million inhabitants."
]
question = "How many people live in Berlin?"

model = Candle::EmbeddingModel.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
candidates = model.search(question, passages, top_k: 3).map { |hit| hit[:text] }

reranker = Candle::Reranker.from_pretrained("cross-encoder/ms-marco-MiniLM-L-12-v2")
ranked = reranker.rerank(question, candidates)
ranked.each { |hit| puts format("%<score>.4f  %<text>s", score: hit[:score], text: hit[:text]) }

raise "the population must come first" unless ranked.first[:text].include?("3,520,031")
