# frozen_string_literal: true

module Candle
  module ToolFormats
    # Llama 3.2 and 4, and others: `[f(x=1), g(y="2")]`, in Llama 4 between tags.
    PYTHONIC = LooseCalls.new(:pythonic, marks: ["["], signs: /\[func_name1\(/, first: true,
                                         call: /(?<name>[A-Za-z_][\w.-]*)\(/,
                                         spelled: { opening: "[", brackets: ["(", ")"], assigned: "=", comma: ", ",
                                                    ending: "]", python: true })

    # Llama 4 between its tags.
    PYTHONIC_TAGGED = LooseCalls.new(:pythonic_tagged, marks: ["<|python_start|>"], closing: "<|python_end|>",
                                                       call: /\s*(?<name>[A-Za-z_][\w.-]*)\(/,
                                                       tokens: %w[<|python_start|> <|python_end|>],
                                                       spelled: { opening: "<|python_start|>[", brackets: ["(", ")"],
                                                                  assigned: "=", comma: ", ", python: true,
                                                                  ending: "]<|python_end|>" })
  end
end
