# frozen_string_literal: true

module Candle
  module ActiveRecord
    # Teaches Active Record's PostgreSQL adapter pgvector's types, where the neighbor gem has not: `t.vector` in
    # migrations, schema files, and columns that are read as numbers.
    #
    # @api private
    module PostgreSQL
      # Types of pgvector's that Active Record does not know.
      NAMES = %w[vector halfvec].freeze

      class << self
        # @param adapter [Class] `ActiveRecord::ConnectionAdapters::PostgreSQLAdapter`
        # @return [void]
        def install(adapter)
          return if adapter < PostgreSQL

          adapter.prepend(PostgreSQL)
          NAMES.each { |name| adapter::NATIVE_DATABASE_TYPES[name.to_sym] ||= { name: name } }
          %i[TableDefinition Table].each do |name|
            table = ::ActiveRecord::ConnectionAdapters.const_get(name)
            table.class_eval { define_column_methods(*NAMES.map(&:to_sym)) } unless table.method_defined?(:vector)
          end
        end
      end

      private

      def initialize_type_map(map = type_map)
        super
        NAMES.each do |name|
          next if map.key?(name)

          map.register_type(name) do |_, _, sql_type|
            limit = sql_type.to_s[/\((\d+)\)/, 1]&.to_i
            VectorType.build(limit: limit) { [name.to_sym, :postgresql] }
          end
        end
      end
    end
  end
end
