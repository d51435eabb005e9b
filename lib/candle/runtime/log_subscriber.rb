# frozen_string_literal: true

require "active_support"
require "active_support/log_subscriber"
require "candle"

module Candle
  # One line per call of a model, at debug: `Candle embed (12.3ms) owner/name on cpu: 3 in a batch, 42 tokens`.
  # Requiring this file attaches it; Rails does so by itself.
  class LogSubscriber < ::ActiveSupport::LogSubscriber
    # @!method embed(event)
    #   @param event [ActiveSupport::Notifications::Event]
    #   @return [void]
    # @!method rerank(event)
    #   @param event [ActiveSupport::Notifications::Event]
    #   @return [void]
    # @!method classify(event)
    #   @param event [ActiveSupport::Notifications::Event]
    #   @return [void]
    # @!method entities(event)
    #   @param event [ActiveSupport::Notifications::Event]
    #   @return [void]
    # @!method fill(event)
    #   @param event [ActiveSupport::Notifications::Event]
    #   @return [void]
    # @!method generate(event)
    #   @param event [ActiveSupport::Notifications::Event]
    #   @return [void]
    # @!method answer(event)
    #   @param event [ActiveSupport::Notifications::Event]
    #   @return [void]
    # @!method detect(event)
    #   @param event [ActiveSupport::Notifications::Event]
    #   @return [void]
    # @!method estimate(event)
    #   @param event [ActiveSupport::Notifications::Event]
    #   @return [void]
    # @!method read(event)
    #   @param event [ActiveSupport::Notifications::Event]
    #   @return [void]
    # @!method segment(event)
    #   @param event [ActiveSupport::Notifications::Event]
    #   @return [void]
    # @!method transcribe(event)
    #   @param event [ActiveSupport::Notifications::Event]
    #   @return [void]
    Instrumentation::CALLS.map { |_, event,| event }.uniq.each do |name|
      define_method(name) { |event| debug { line(name, event) } }
    end

    # @return [Logger] {Candle.logger}, or that of Rails
    def logger
      defined?(::Rails.logger) && ::Rails.logger ? ::Rails.logger : Candle.logger
    end

    private

    def line(name, event)
      facts = event.payload
      counts = ["#{facts[:batch]} in a batch", facts[:tokens] && "#{facts[:tokens]} tokens",
                facts[:cached_tokens].to_i.positive? ? "#{facts[:cached_tokens]} of them cached" : nil,
                facts[:queue].to_i.positive? ? "#{facts[:queue]} waiting" : nil,
                facts[:exception] && "failed with #{facts[:exception].first}"]
      "Candle #{name} (#{event.duration.round(1)}ms) #{facts[:model]} on #{facts[:device]}: " \
        "#{counts.compact.join(", ")}"
    end
  end
end

Candle::LogSubscriber.attach_to(:candle)
