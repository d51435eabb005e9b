# frozen_string_literal: true

module Candle
  # Has Rails log the calls of models, and load all of red-candle where it loads the application eagerly.
  #
  # @api private
  class Railtie < ::Rails::Railtie
    config.eager_load_namespaces << Candle

    initializer("candle.log_subscriber") { require "candle/runtime/log_subscriber" }
  end
end
