# frozen_string_literal: true

module Candle
  module ToolFormats
    # Phi-4-mini: `<|tool_call|>[{"name": "f", "arguments": {...}}]<|/tool_call|>`.
    PHI4 = JsonCalls.new(:phi4, marks: ["<|tool_call|>"], signs: ["<|/tool_call|>"], closing: "<|/tool_call|>",
                                list: true, tokens: %w[<|tool_call|> <|/tool_call|>])

    # What it writes where the template names no tag: `functools[{"name": "f", "arguments": {...}}]`.
    PHI4_FUNCTOOLS = JsonCalls.new(:functools, marks: ["functools["], inside: //, list: true, first: true)
  end
end
