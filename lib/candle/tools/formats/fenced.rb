# frozen_string_literal: true

module Candle
  module ToolFormats
    # Models without a form of their own: JSON in a code fence.
    FENCED = JsonCalls.new(:fenced, marks: ["```json\n", "```tool_call\n", "```tool_code\n", "```\n"],
                                    signs: ["```tool_call"], closing: "```", strict: true)
  end
end
