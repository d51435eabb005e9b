# frozen_string_literal: true

# Everything that is known of a run: tokens, probabilities, timings.
require "candle"

source = ARGV.fetch(0) { File.expand_path("../spec/fixtures/tiny/decoders/llama", __dir__) }
llm = Candle::LLM.from_pretrained(source)

completion = llm.complete("the dog", config: Candle::GenerationConfig.deterministic(max_length: 8, logprobs: 3))
completion.logprobs.each do |entry|
  others = entry[:top].map { |other| format("%<token>s %<logprob>.2f", other) }
  puts format("%<token>-8s %<logprob>.2f  of ", entry) + others.join(", ")
end
puts "#{completion.usage.completion_tokens} tokens, ended by #{completion.finish_reason}"
