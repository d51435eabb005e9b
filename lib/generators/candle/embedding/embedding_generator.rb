# frozen_string_literal: true

require "rails/generators"
require "rails/generators/active_record"

module Candle
  # Generators of Rails: `rails generate candle:embedding`, `rails generate candle:jobs`.
  module Generators
    # `rails generate candle:embedding Article content --dimensions 384`: a migration with the columns and the index of
    # `has_embedding`.
    class EmbeddingGenerator < ::Rails::Generators::NamedBase
      include ::ActiveRecord::Generators::Migration

      source_root File.join(__dir__, "templates")
      desc "Writes a migration that adds a column of vectors, that of their digests, and an index."

      argument :attribute, type: :string, default: "content", banner: "attribute"
      class_option :dimensions, type: :numeric, required: true, desc: "How many components a vector has"
      class_option :column, type: :string, default: "embedding", desc: "The column of the vectors"
      class_option :type, type: :string, default: "vector", enum: %w[vector halfvec int8 bit], desc: "What it holds"
      class_option :bits, type: :boolean, default: false, desc: "Add a column of signs, which finds candidates"
      class_option :index, type: :string, default: "hnsw", enum: %w[hnsw ivfflat none], desc: "How it is searched"
      class_option :distance, type: :string, default: "cosine", enum: %w[cosine euclidean inner_product]

      # @return [void]
      def write_migration
        migration_template("migration.rb.tt", "db/migrate/add_#{options[:column]}_to_#{table_name}.rb")
      end

      # @return [void]
      def show_declaration
        given = +"has_embedding :#{attribute}, model: \"...\", dimensions: #{options[:dimensions]}"
        given << ", column: :#{options[:column]}" unless options[:column] == "embedding"
        given << ", bits: true" if options[:bits]
        say "Now declare it in #{class_name}:\n\n  #{given}\n"
      end

      private

      # @return [Array(String, String), nil] the column that is indexed, and its type
      def indexed
        return if options[:index] == "none"
        return ["#{options[:column]}_bits", "bit"] if options[:bits]

        [options[:column], options[:type]] unless options[:type] == "int8"
      end

      def index_options
        column, type = indexed
        words = [":#{table_name}, :#{column}, using: :#{options[:index]}"]
        words << "type: :#{type}" unless type == "vector"
        words << "distance: :#{options[:distance]}" unless type == "bit" || options[:distance] == "cosine"
        words.join(", ")
      end

      def column_options
        words = [":#{table_name}, :#{options[:column]}, dimensions: #{options[:dimensions]}"]
        words << "type: :#{options[:type]}" unless options[:type] == "vector"
        words << "bits: true" if options[:bits]
        words.join(", ")
      end
    end
  end
end
