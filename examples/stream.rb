# frozen_string_literal: true

# Streams a text. Give a model's id or path; without one a tiny random model babbles.
require "candle"

source = ARGV.fetch(0) { File.expand_path("../spec/fixtures/tiny/decoders/llama", __dir__) }
llm = Candle::LLM.from_pretrained(source)

llm.generate_stream("Once upon a time", max_length: 40, seed: 1) { |piece| print piece }
puts
