# frozen_string_literal: true

module Candle
  module ActiveRecord
    # Makes `require "candle/active_record"` of a Gemfile enough, and reads `config.candle`.
    #
    # `config.candle.preload` names the models that each process loads when it has started; the application's logger
    # takes what the gem has to say.
    class Railtie < ::Rails::Railtie
      config.candle = ::ActiveSupport::OrderedOptions.new
      config.candle.preload = []

      initializer("candle.logger") { Candle.logger = ::Rails.logger if ::Rails.logger }

      config.after_initialize do |application|
        Array(application.config.candle.preload).each { |source| ModelRegistry.shared.preload(source) }
      end
    end
  end
end
