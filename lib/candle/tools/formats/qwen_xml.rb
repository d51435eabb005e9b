# frozen_string_literal: true

module Candle
  module ToolFormats
    # Qwen3-Coder and Qwen 3.5: `<tool_call><function=f><parameter=x>1</parameter></function></tool_call>`.
    QWEN_XML = TaggedCalls.new(
      :qwen_xml, marks: ["<tool_call>", "<function="], signs: /<function=.*<parameter=/m, wrapper: "</tool_call>",
                 tokens: %w[<tool_call> </tool_call>],
                 header: %r{(?:<tool_call>\s*)?<function=(?<name>[^>\n]+)>(?=\s*</?[pf])},
                 begun: %r{(?:<tool_call>\s*)?(?:<[a-z]*(?:=[^>\n]*(?:>\s*(?:</?)?)?)?)?},
                 opening: /<parameter=(?<key>[^>\n]+)>/, closing: "</parameter>", footer: %r{\s*</function>},
                 spelled: { opening: "<tool_call>\n<function=", named: ">\n", before: "<parameter=", between: ">\n",
                            closing: ["\n</parameter>", "\n"], ending: "</function>\n</tool_call>" }
    )
  end
end
