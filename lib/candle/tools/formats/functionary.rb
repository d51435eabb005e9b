# frozen_string_literal: true

module Candle
  module ToolFormats
    # Functionary 3.1 and Llama 3.1 with tools of its own: `<function=f>{...}</function>`.
    FUNCTIONARY = NamedCalls.new(:functionary, marks: ["<function="], footers: ["</function>"],
                                               header: /<function=(?<name>[\w.-]+)>\s*/,
                                               spelled: ["<function=", ">", "</function>"])

    # Functionary 3.2: `>>>f`, and the arguments on the next line; `>>>all` is a text.
    FUNCTIONARY_LINES = NamedCalls.new(:functionary_lines, marks: [">>>"], noise: [">>>all\n"],
                                                           signs: />>>all|\\n>>>|["']>>>["']/,
                                                           header: />>>(?<name>[\w.-]+)\n\s*(?=\{|\z)/,
                                                           begun: />{3}[\w.-]*\n?\s*/,
                                                           spelled: [">>>", "\n", ""])

    # The same where the prompt ends with the mark.
    FUNCTIONARY_FIRST = NamedLines.new(:functionary_first, marks: [], signs: /(?!)/, first: true,
                                                           header: /(?<name>[\w.-]+)\n\s*(?=\{|\z)/,
                                                           begun: /[\w.-]+\n?\s*/)
  end
end
