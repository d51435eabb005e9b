# frozen_string_literal: true

module Candle
  module ToolFormats
    # Command R7B and A: `<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {...}}]<|END_ACTION|>`.
    COHERE = JsonCalls.new(:cohere, marks: ["<|START_ACTION|>"], closing: "<|END_ACTION|>",
                                    fields: %w[tool_name parameters], list: true,
                                    tokens: %w[<|START_ACTION|> <|END_ACTION|>])

    # Command R: the same in a code fence behind `Action:`.
    COHERE_FENCED = JsonCalls.new(:cohere_fenced, marks: ["Action:"], signs: /Action:['"]? (?:followed|```)/,
                                                  inside: /\s*```(?:json)?\s*/,
                                                  begun: /\s*`{0,3}[a-z]{0,4}\s*/,
                                                  closing: "```", fields: %w[tool_name parameters], list: true,
                                                  spelled: "Action: ```json\n")
  end
end
