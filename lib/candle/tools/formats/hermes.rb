# frozen_string_literal: true

module Candle
  module ToolFormats
    # Hermes, Qwen, Granite 4 and many others: `<tool_call>{"name": "f", "arguments": {...}}</tool_call>`.
    HERMES = JsonCalls.new(:hermes, marks: ["<tool_call>"], closing: "</tool_call>",
                                    tokens: %w[<tool_call> </tool_call>])
  end
end
