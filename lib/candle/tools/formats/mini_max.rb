# frozen_string_literal: true

module Candle
  module ToolFormats
    # MiniMax M1: `<tool_calls>` and a call as JSON on each line.
    MINI_MAX = JsonCalls.new(:mini_max, marks: ["<tool_calls>"], closing: "</tool_calls>")

    # MiniMax M2: `<minimax:tool_call><invoke name="f"><parameter name="x">1</parameter></invoke></minimax:tool_call>`.
    MINI_MAX_TAGGED = TaggedCalls.new(
      :mini_max_tagged, marks: ["<invoke name="], signs: ["<minimax:tool_call>"],
                        noise: %w[<minimax:tool_call> </minimax:tool_call>],
                        tokens: %w[<minimax:tool_call> </minimax:tool_call>],
                        header: /<invoke\s+name="(?<name>[^"]+)"\s*>/,
                        opening: /<parameter\s+name="(?<key>[^"]+)"\s*>/, closing: "</parameter>",
                        footer: %r{\s*</invoke>}, begun: /<invoke name=[^>\n]*>?/,
                        spelled: { opening: "<minimax:tool_call>\n<invoke name=\"", named: "\">\n",
                                   before: "<parameter name=\"", between: "\">", closing: ["</parameter>", "\n"],
                                   ending: "</invoke>\n</minimax:tool_call>" }
    )
  end
end
