# frozen_string_literal: true

# Tokenize texts the way a model sees them, and find the place of a token in the text.
require "candle"

tokenizer = Candle::Tokenizer.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
text = "Tokenizers split unbelievably."

tokenizer.encode_to_tokens(text).each { |token| puts token }

ids = tokenizer.encode(text)
puts "#{ids.size} ids, decoded: #{tokenizer.decode(ids)}"
