# frozen_string_literal: true

module Candle
  module ToolFormats
    # Llama 3 and others that write nothing but the call: `{"name": "f", "parameters": {...}}`.
    BARE = JsonCalls.new(:bare, marks: ["{", "["], signs: /(?!)/, first: true, strict: true)

    # Llama 3: the same behind a tag, several with semicolons between them.
    LLAMA = JsonCalls.new(:llama, marks: ["<|python_tag|>"], fields: %w[name parameters],
                                  tokens: %w[<|python_tag|> <|eom_id|>], noise: %w[<|eom_id|> <|eot_id|>])

    # Llama 3 calling tools that were built in: `<|python_tag|>f.call(x="1")`.
    LLAMA_BUILT_IN = LooseCalls.new(:llama_built_in, marks: ["<|python_tag|>"], list: false,
                                                     tokens: %w[<|python_tag|>],
                                                     call: /\s*(?<name>[A-Za-z_]\w*)\.call\(/)
  end
end
