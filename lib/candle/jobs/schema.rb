# frozen_string_literal: true

module Candle
  module Jobs
    # The tables of {Ledger}.
    #
    # @api private
    module Schema
      RUNS = "candle_runs"
      SLICES = "candle_slices"
      SET_ASIDE = "candle_set_aside"

      class << self
        # Creates what is missing, for applications that did not run `rails generate candle:jobs`.
        #
        # @return [void]
        # @raise [Error] without Active Record
        def ensure
          unless defined?(::ActiveRecord::Base)
            raise Error, "Candle::Jobs keeps its progress in a database: require \"active_record\" and connect it"
          end
          return if there?

          Candle.logger.info("creating the tables of Candle::Jobs")
          create(::ActiveRecord::Base.connection)
        end

        # @return [Boolean]
        def there?
          defined?(::ActiveRecord::Base) ? ::ActiveRecord::Base.connection.table_exists?(SET_ASIDE) : false
        end

        # @param connection [ActiveRecord::ConnectionAdapters::AbstractAdapter]
        # @return [void]
        def create(connection)
          create_runs(connection)
          create_slices(connection)
          connection.create_table(SET_ASIDE, if_not_exists: true) do |table|
            table.bigint :run_id, null: false, index: true
            table.string :key, null: false
            table.text :error, null: false
          end
        end

        # @param connection [ActiveRecord::ConnectionAdapters::AbstractAdapter]
        # @return [void]
        def drop(connection)
          [SET_ASIDE, SLICES, RUNS].each { |name| connection.drop_table(name, if_exists: true) }
        end

        private

        def create_runs(connection)
          connection.create_table(RUNS, if_not_exists: true) do |table|
            table.text :description, null: false
            table.string :state, null: false, default: "running"
            table.boolean :cut, null: false, default: false
            table.float :started_at, null: false, limit: 53
            table.float :finished_at, limit: 53
            table.float :watched_until, null: false, default: 0, limit: 53
          end
        end

        def create_slices(connection)
          connection.create_table(SLICES, if_not_exists: true) do |table|
            table.bigint :run_id, null: false
            table.string :state, null: false, default: "waiting"
            table.integer :size, null: false
            table.text :payload, null: false
            table.string :token
            table.float :free_at, null: false, default: 0, limit: 53
            table.integer :attempts, null: false, default: 0
            %i[embedded skipped set_aside].each { |name| table.integer name, null: false, default: 0 }
            table.text :error
            table.index %i[run_id state]
          end
        end
      end
    end
  end
end
