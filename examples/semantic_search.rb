# frozen_string_literal: true

# Find passages by meaning: embed them once, then search with any question.
require "candle"

model = Candle::EmbeddingModel.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")

passages = [
  "Berlin has about 3.7 million inhabitants.",
  "Bread rises because yeast turns sugar into carbon dioxide.",
  "Ruby was created by Yukihiro Matsumoto in the nineties.",
  "The Great Barrier Reef lies off the coast of Australia."
]

# Vectors of any number of texts, a batch at a time. A database would keep them, here a tensor does.
rows = []
model.embed_each(passages) { |_text, vector| rows << vector }
vectors = Candle::Tensor.new(rows)

["How many people live in Germany's capital?", "Who invented the programming language?"].each do |question|
  hit = model.search(question, vectors, top_k: 1).first
  puts format("%<question>s\n  %<score>.3f  %<text>s", question: question, score: hit[:score],
                                                       text: passages[hit[:index]])
end

best = model.search("baking a loaf", passages, top_k: 1).first
raise "the passage about bread must be found" unless best[:index] == 1
