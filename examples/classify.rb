# frozen_string_literal: true

# Labels for texts. Give the id or directory of a classifier, such as
# "distilbert/distilbert-base-uncased-finetuned-sst-2-english"; without one a small random model shows the calls.
require "candle"

source = ARGV.fetch(0) { File.expand_path("../spec/fixtures/tiny/bert-sequence", __dir__) }
classifier = Candle::Classifier.from_pretrained(source)

texts = ["What a wonderful day.", "The train is late again."]
classifier.classify(texts, top_k: 2).zip(texts) do |labels, text|
  puts "#{text} #{labels.map { |entry| format("%<label>s %<score>.2f", entry) }.join(", ")}"
end

# Models of natural language inference also take labels that they were never trained on.
found = classifier.zero_shot("The train is late again.", %w[travel cooking])
puts found.map { |entry| format("%<label>s %<score>.2f", entry) }.join(", ")

raise "the scores of one text add up to 1" unless (found.sum { |entry| entry[:score] } - 1).abs < 1e-4
