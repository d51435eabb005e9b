# frozen_string_literal: true

module Candle
  module ToolFormats
    # Gemma 4: `<|tool_call>call:f{x:<|"|>1<|"|>}<tool_call|>`.
    GEMMA = LooseCalls.new(:gemma, marks: ["<|tool_call>"], closing: "<tool_call|>", list: false,
                                   call: /\s*call:(?<name>[\w.-]+)\{/, brackets: ["{", "}"], assigned: /\s*:\s*/,
                                   quotes: ['<|"|>'], tokens: ["<|tool_call>", "<tool_call|>", '<|"|>'],
                                   spelled: { opening: "<|tool_call>call:", brackets: ["{", "}"], assigned: ":",
                                              comma: ",", ending: "<tool_call|>", quote: '<|"|>' })

    # FunctionGemma: `<start_function_call>call:f{x:<escape>1<escape>}<end_function_call>`.
    FUNCTION_GEMMA = LooseCalls.new(
      :function_gemma, marks: ["<start_function_call>"], closing: "<end_function_call>", list: false,
                       call: /\s*call:(?<name>[\w.-]+)\{/, brackets: ["{", "}"], assigned: /\s*:\s*/,
                       quotes: ["<escape>"], tokens: %w[<start_function_call> <end_function_call> <escape>],
                       spelled: { opening: "<start_function_call>call:", brackets: ["{", "}"], assigned: ":",
                                  comma: ",", ending: "<end_function_call>", quote: "<escape>" }
    )

    # Gemma 3, as its guide has it: calls as code in a fence.
    GEMMA_FENCED = LooseCalls.new(:gemma_fenced, marks: ["```tool_code\n"], closing: "```",
                                                 call: /\s*(?:print\()?(?<name>[A-Za-z_][\w.-]*)\(/,
                                                 spelled: { opening: "```tool_code\n[", brackets: ["(", ")"],
                                                            assigned: "=", comma: ", ", ending: "]\n```",
                                                            python: true })
  end
end
