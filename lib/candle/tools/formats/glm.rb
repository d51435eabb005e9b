# frozen_string_literal: true

module Candle
  module ToolFormats
    # GLM-4.5 and later: `<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>`.
    GLM = TaggedCalls.new(
      :glm, marks: ["<tool_call>"], signs: ["<arg_key>"], tokens: %w[<tool_call> </tool_call>],
            header: %r{<tool_call>\n*(?<name>[\w.-]+)(?=\s*<arg_key>|\s*</tool_call>)},
            opening: %r{<arg_key>(?<key>.*?)</arg_key>\s*<arg_value>}m, closing: "</arg_value>",
            footer: %r{\s*</tool_call>}, begun: %r{<tool_call>\n*[\w.-]*\s*(?:<[/a-z_]*)?},
            spelled: { opening: "<tool_call>", named: "\n", before: "<arg_key>", between: "</arg_key>\n<arg_value>",
                       closing: ["</arg_value>", "\n"], ending: "</tool_call>" }
    )

    # GLM-4: the name on a line of its own, the arguments on the next, and nothing else.
    class NamedLines < NamedCalls
      # What a text begins with that is not a call, in Functionary.
      TEXT = "all\n"
      private_constant :TEXT

      # @see ToolFormat#marks
      def marks(tools = [])
        [*tools.map(&:name), *(TEXT if name == :functionary_first)]
      end

      # @see ToolFormat#read
      def read(text, tools, final: false)
        return super unless name == :functionary_first && text.start_with?(TEXT)

        Reading.new(calls: [], stop: TEXT.bytesize, dropped: true)
      end
    end

    # @see NamedLines
    GLM_LINES = NamedLines.new(:glm_lines, marks: [], signs: ["<|observation|>"], first: true,
                                           header: /(?<name>[\w.-]+)[ \t]*\n\s*(?=\{|\z)/, begun: /[\w.-]+[ \t]*\s*/,
                                           spelled: ["", "\n", ""])
  end
end
