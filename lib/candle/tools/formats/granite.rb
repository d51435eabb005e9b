# frozen_string_literal: true

module Candle
  module ToolFormats
    # Granite 3: `<|tool_call|>[{"name": "f", "arguments": {...}}]`; some versions write the tag as a word.
    GRANITE = JsonCalls.new(:granite, marks: ["<|tool_call|>"], list: true, tokens: %w[<|tool_call|>])
  end
end
