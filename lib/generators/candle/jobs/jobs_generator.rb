# frozen_string_literal: true

require "rails/generators"
require "rails/generators/active_record"

module Candle
  module Generators
    # `rails generate candle:jobs`: a migration with the tables in which `Candle::Jobs` keeps its progress.
    class JobsGenerator < ::Rails::Generators::Base
      include ::ActiveRecord::Generators::Migration

      source_root File.join(__dir__, "templates")
      desc "Writes a migration that adds the tables of Candle::Jobs."

      # @return [void]
      def write_migration
        migration_template("migration.rb.tt", "db/migrate/create_candle_jobs_tables.rb")
      end
    end
  end
end
