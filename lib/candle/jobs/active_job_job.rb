# frozen_string_literal: true

module Candle
  module Jobs
    # A job of Active Job's. Errors of texts and slices stay in the ledger; what is left, such as a database that does
    # not answer, is tried again here.
    class ActiveJobJob < ::ActiveJob::Base
      include Work

      retry_on StandardError, attempts: 10, wait: ->(executions) { 2 + (executions**3) }
    end
  end
end
