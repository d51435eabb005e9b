# frozen_string_literal: true

module Candle
  module ToolFormats
    # Kimi K2: `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`.
    KIMI = NamedCalls.new(
      :kimi, marks: ["<|tool_call_begin|>"], footers: ["<|tool_call_end|>"],
             noise: %w[<|tool_calls_section_begin|> <|tool_calls_section_end|>],
             tokens: %w[<|tool_call_begin|> <|tool_call_argument_begin|> <|tool_call_end|>
                        <|tool_calls_section_begin|> <|tool_calls_section_end|>],
             header: /<\|tool_call_begin\|>\s*(?<id>(?:functions\.)?(?<name>[\w.-]+?)(?::\d+)?)\s*
                      <\|tool_call_argument_begin\|>\s*/x,
             spelled: ["<|tool_calls_section_begin|><|tool_call_begin|>functions.", ":0<|tool_call_argument_begin|>",
                       "<|tool_call_end|><|tool_calls_section_end|>"]
    )
  end
end
