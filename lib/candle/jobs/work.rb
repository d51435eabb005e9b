# frozen_string_literal: true

module Candle
  module Jobs
    # What a job of any backend does.
    module Work
      # Takes one slice of a run; or looks after a run whose jobs were lost; or brings one record up to date.
      #
      # @param run_or_model [Integer, String] a run's id; or the name of a model, whose record is meant
      # @param second [String, Object, nil] `"watch"`, or the record's key
      # @return [void]
      def perform(run_or_model, second = nil)
        return Work.update_record(run_or_model, second) if run_or_model.is_a?(String)

        ledger = Ledger.lookup(run_or_model)
        Work.advance(ledger, watching: second == "watch") if ledger
      end

      class << self
        # @api private
        # @param ledger [Ledger]
        # @param watching [Boolean]
        # @return [void]
        def advance(ledger, watching: false)
          return unless ledger.state == "running"

          if watching
            ledger.refill
          elsif (taken = ledger.take)
            work_on(ledger, taken)
          end
          ledger.watch unless ledger.settle
        end

        # @api private
        # @param name [String]
        # @param key [Object]
        # @return [void]
        def update_record(name, key)
          record = Object.const_get(name).unscoped.find_by(Object.const_get(name).primary_key => key)
          return unless record

          record.class.candle_embeddings.each_key { |column| record.public_send("update_#{column}") }
        end

        private

        def work_on(ledger, taken)
          Slice.new(ledger, taken).perform
        rescue StandardError => e
          Candle.logger.warn("slice #{taken.id} of run #{ledger.id} failed (attempt #{taken.attempts}): #{e.message}")
          ledger.give_back(taken, e)
        rescue Exception # rubocop:disable Lint/RescueException -- a shutdown, which must not cost an attempt
          ledger.give_back(taken)
          raise
        end
      end
    end
  end
end
