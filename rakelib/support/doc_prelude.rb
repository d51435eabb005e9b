# frozen_string_literal: true

# Loaded before every documentation example that runs.
require "candle"

# Compares a value with what the documentation says it is.
def doc_check(value, expected, line)
  pattern = Regexp.new("\\A#{Regexp.escape(expected).gsub('\.\.\.', ".*")}\\z", Regexp::MULTILINE)
  return value if value.inspect.match?(pattern)

  abort "line #{line}: the documentation says #{expected}, but it is #{value.inspect}"
end
