# frozen_string_literal: true

module Candle
  # Version of the gem. The Cargo workspace carries the same number.
  VERSION = "2.0.0"
end
