# frozen_string_literal: true

module Candle
  # The version of the gem.
  VERSION = "2.0.0"
end
