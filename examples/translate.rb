# frozen_string_literal: true

# Translations. Give the id or directory of a model and two languages as it calls them, such as
# "facebook/nllb-200-distilled-600M" eng_Latn fra_Latn, or "Helsinki-NLP/opus-mt-en-de" alone; without one a small
# random model shows the calls.
require "candle"

source = ARGV.fetch(0) { File.expand_path("../spec/fixtures/tiny/seq2seq/nllb", __dir__) }
from, to = ARGV.empty? ? %w[eng_Latn fra_Latn] : ARGV.values_at(1, 2)
model = Candle::Seq2Seq.from_pretrained(source)
puts "#{model.languages.size} languages: #{model.languages.first(5).join(", ")}"

# Several texts are written at once; beams look further ahead than one token.
texts = ["Where is the station?", "The train is late again."]
translations = model.translate(texts, from: from, to: to, num_beams: 4, max_length: 40)
texts.zip(translations) { |text, translation| puts "#{text} -> #{translation}" }

raise "every text has its translation" unless translations.size == texts.size
