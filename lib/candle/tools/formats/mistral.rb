# frozen_string_literal: true

module Candle
  module ToolFormats
    # Mistral up to version 7 of its tokenizers: `[TOOL_CALLS] [{"name": "f", "arguments": {...}, "id": "..."}]`.
    MISTRAL = JsonCalls.new(:mistral, marks: ["[TOOL_CALLS]"], list: true, tokens: %w[[TOOL_CALLS]])

    # Versions 11 and 13: `[TOOL_CALLS]f[CALL_ID]abc[ARGS]{...}`, and without an id.
    MISTRAL_NAMED = NamedCalls.new(
      :mistral_named, marks: ["[TOOL_CALLS]"], signs: ["[ARGS]"], tokens: %w[[TOOL_CALLS] [CALL_ID] [ARGS]],
                      header: /\[TOOL_CALLS\]\s*(?<name>[\w.-]+)(?:\[CALL_ID\](?<id>\w*))?\s*(?:\[ARGS\]\s*|(?=\{))/,
                      spelled: ["[TOOL_CALLS]", "[ARGS]", ""]
    )
  end
end
