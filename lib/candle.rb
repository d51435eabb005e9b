# frozen_string_literal: true

require "candle/version"
require "candle/errors"
require "candle/logging"
require "candle/native"
require "candle/build_info"
require "candle/utils"
require "candle/dtype"
require "candle/device"
require "candle/tensor"
require "candle/tokenizer"
require "candle/hub"
require "candle/weights"
require "candle/model"
require "candle/generation_config"
require "candle/completion"
require "candle/session"
require "candle/llm"

# Transformer models inside your Ruby process.
module Candle
end
