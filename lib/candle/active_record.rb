# frozen_string_literal: true

require "candle"
require "candle/files/model_registry"
require "candle/active_record/codec"
require "candle/active_record/vector_type"
require "candle/active_record/embedding"
require "candle/active_record/store"
require "candle/active_record/scan"
require "candle/active_record/search"
require "candle/active_record/record"
require "candle/active_record/model"
require "candle/active_record/migration"
require "candle/active_record/postgresql"

module Candle
  # Vectors of records, kept in a column of pgvector's or of SQLite and searched there.
  #
  # Loading this file needs no Rails. Once Active Record is there, every model answers {Model#has_embedding}.
  module ActiveRecord
    @scan_limit = 100_000

    class << self
      # How many vectors {Model#nearest} compares in Ruby at most, in SQLite without the sqlite-vec extension.
      #
      # @return [Integer]
      attr_reader :scan_limit

      # @param limit [Integer]
      # @raise [ArgumentError] for anything but a positive Integer
      def scan_limit=(limit)
        @scan_limit = Arguments.count(limit, "scan_limit") ||
                      raise(ArgumentError, "scan_limit must be a positive Integer, not nil")
      end

      # Gives {Model} to Active Record, and what they need to its migrations and to its PostgreSQL adapter.
      #
      # @api private
      # @param base [Class] `ActiveRecord::Base`
      # @return [void]
      def install(base)
        base.extend(Model)
        ::ActiveRecord::Migration.include(Migration)
        require "active_record/connection_adapters/postgresql_adapter"
        PostgreSQL.install(::ActiveRecord::ConnectionAdapters::PostgreSQLAdapter)
      rescue LoadError
        nil # there is no pg gem, so there are no columns of pgvector's
      end
    end
  end
end

begin
  require "active_support/lazy_load_hooks"
  ActiveSupport.on_load(:active_record) { Candle::ActiveRecord.install(self) }
rescue LoadError
  nil # Active Record is not installed
end

require "candle/active_record/railtie" if defined?(Rails::Railtie)
