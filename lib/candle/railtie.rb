# frozen_string_literal: true

module Candle
  # Has Rails log the calls of models.
  #
  # @api private
  class Railtie < ::Rails::Railtie
    initializer("candle.log_subscriber") { require "candle/log_subscriber" }
  end
end
