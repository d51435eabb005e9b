# frozen_string_literal: true

module Candle
  module ToolFormats
    # gpt-oss: `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>`.
    HARMONY = NamedCalls.new(
      :harmony, marks: [" to=functions.", "<|channel|>", "<|start|>assistant"], signs: ["<|channel|>"],
                tokens: ReasoningFormat::HARMONY_TOKENS, footers: ["<|call|>", "<|end|>"],
                header: /(?:(?!<\|message\|>).)*?\bto=(?:functions\.)?(?<name>[\w-]+(?:\.[\w-]+)*)
                         (?:(?!<\|message\|>).)*?<\|message\|>\s*/mx,
                spelled: ["<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", ""]
    )
  end
end
