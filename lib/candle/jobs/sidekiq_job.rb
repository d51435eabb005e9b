# frozen_string_literal: true

module Candle
  module Jobs
    # A job of Sidekiq's. Errors of texts and slices stay in the ledger; what is left, such as a database that does not
    # answer, is tried again by Sidekiq.
    class SidekiqJob
      include(defined?(::Sidekiq::Job) ? ::Sidekiq::Job : ::Sidekiq::Worker)
      include Work

      sidekiq_options retry: 10

      ::Sidekiq.configure_server { |config| config.on(:startup) { Jobs.resume } }
    end
  end
end
