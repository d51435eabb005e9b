# frozen_string_literal: true

module Candle
  module ToolFormats
    # LFM2: `<|tool_call_start|>[f(x=1)]<|tool_call_end|>`.
    LFM2 = LooseCalls.new(:lfm2, marks: ["<|tool_call_start|>"], closing: "<|tool_call_end|>",
                                 call: /\s*(?<name>[A-Za-z_][\w.-]*)\(/,
                                 tokens: %w[<|tool_call_start|> <|tool_call_end|>],
                                 spelled: { opening: "<|tool_call_start|>[", brackets: ["(", ")"], assigned: "=",
                                            comma: ", ", ending: "]<|tool_call_end|>", python: true })
  end
end
