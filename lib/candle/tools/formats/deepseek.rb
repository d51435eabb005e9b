# frozen_string_literal: true

module Candle
  module ToolFormats
    # What stands around the calls of DeepSeek.
    DEEPSEEK_NOISE = %w[<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜>].freeze
    # What its calls are made of.
    DEEPSEEK_TOKENS = ["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", *DEEPSEEK_NOISE].freeze
    private_constant :DEEPSEEK_NOISE, :DEEPSEEK_TOKENS

    # DeepSeek V3 and R1: the name behind a separator, the arguments in a code fence.
    DEEPSEEK = NamedCalls.new(
      :deepseek, marks: ["<｜tool▁call▁begin｜>"], signs: /<｜tool▁sep｜>.{0,80}```json/m, tokens: DEEPSEEK_TOKENS,
                 noise: DEEPSEEK_NOISE, footers: ["```<｜tool▁call▁end｜>", "```\n<｜tool▁call▁end｜>", "```"],
                 header: /<｜tool▁call▁begin｜>\s*\w+\s*<｜tool▁sep｜>\s*(?<name>[\w.-]+)\s*```(?:json)?\s*(?=\{|\z)/,
                 spelled: ["<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n",
                           "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"]
    )

    # DeepSeek V3.1: `<｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`.
    DEEPSEEK_NAMED = NamedCalls.new(
      :deepseek_named, marks: ["<｜tool▁call▁begin｜>"], tokens: DEEPSEEK_TOKENS, noise: DEEPSEEK_NOISE,
                       footers: ["<｜tool▁call▁end｜>"],
                       header: /<｜tool▁call▁begin｜>\s*(?<name>[\w.-]+)\s*<｜tool▁sep｜>\s*(?=\{|\z)/,
                       spelled: ["<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
                                 "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"]
    )

    # DeepSeek V3.2: `<｜DSML｜invoke name="f"><｜DSML｜parameter name="x" string="true">1</｜DSML｜parameter>`.
    DEEPSEEK_TAGGED = TaggedCalls.new(
      :deepseek_tagged, marks: ["<｜DSML｜invoke"], signs: ["｜DSML｜"], tokens: %w[｜DSML｜],
                        noise: %w[<｜DSML｜function_calls> </｜DSML｜function_calls>],
                        header: /<｜DSML｜invoke\s+name="(?<name>[^"]+)"\s*>/,
                        opening: /<｜DSML｜parameter\s+name="(?<key>[^"]+)"(?:\s+string="(?<text>true|false)")?\s*>/,
                        closing: "</｜DSML｜parameter>", footer: %r{\s*</｜DSML｜invoke>},
                        begun: /<｜DSML｜invoke(?:\s+(?:n[^>]*>?)?)?/,
                        spelled: { opening: "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"", named: "\">\n",
                                   before: "<｜DSML｜parameter name=\"", between: ->(text) { "\" string=\"#{text}\">" },
                                   closing: ["</｜DSML｜parameter>", "\n"],
                                   ending: "</｜DSML｜invoke>\n</｜DSML｜function_calls>" }
    )
  end
end
