# frozen_string_literal: true

# Loaded instead of spec_helper by `rake rails:spec`, with Debian's Rails on the load path: Active Support would change
# what the other specs run in.
require "active_record"
require "candle/active_record"
require "candle/jobs"
require_relative "../support/be_near"
require_relative "../support/tiny_models"
require_relative "../../rakelib/support/models"

# Databases of the specs, and the models that their tables are for.
module Databases
  MODEL = TinyModels.path("bert-sentence")
  DIMENSIONS = 32
  TEXTS = ["the quick fox", "hello world", "the lazy dog", "a small house", "the red apple", "one two three"].freeze

  module_function

  def postgresql
    { adapter: "postgresql", host: ENV.fetch("CANDLE_POSTGRES"), username: "candle", database: "postgres",
      min_messages: "warning", pool: 10 }
  end

  def connect(name)
    configuration = name == :postgresql ? postgresql : { adapter: "sqlite3", database: ":memory:" }
    ActiveRecord::Base.establish_connection(configuration)
    name == :postgresql ? ActiveRecord::Base.connection.enable_extension("vector") : load_sqlite_vec
  end

  def load_sqlite_vec
    raw = ActiveRecord::Base.connection.raw_connection
    raw.enable_load_extension(true)
    raw.load_extension(ENV.fetch("CANDLE_SQLITE_VEC"))
  end

  # @return [Class] a model named Article over a new table
  def article(type: :vector, bits: false, **options)
    migrate do
      drop_table(:articles, if_exists: true)
      create_table(:articles) { |table| table.text(:content) && table.string(:language) && table.string(:address) }
      add_index(:articles, :address, unique: true)
      add_embedding(:articles, dimensions: options.fetch(:dimensions, DIMENSIONS), type: type, bits: bits)
    end
    settings = { model: MODEL, dimensions: DIMENSIONS, type: type, **(bits ? { bits: true } : {}), **options }
    define_article { has_embedding(:content, **settings) }
  end

  def define_article(&body)
    Object.__send__(:remove_const, :Article) if Object.const_defined?(:Article)
    Object.const_set(:Article, Class.new(ActiveRecord::Base))
    Article.class_eval(&body)
    Article
  end

  def migrate(direction = :up, &body)
    ActiveRecord::Migration.suppress_messages do
      Class.new(ActiveRecord::Migration[6.1]) { define_method(:change, &body) }.migrate(direction)
    end
    ActiveRecord::Base.connection.schema_cache.clear!
  end

  # @return [Array<String>] the statements that the block sends
  def statements(&block)
    payloads(&block).map { |payload| payload[:sql] }
  end

  # @return [Array] what is bound to these statements
  def statement_binds(&block)
    payloads(&block).map { |payload| payload[:type_casted_binds] }
                    .flat_map { |binds| binds.respond_to?(:call) ? binds.call : binds }
  end

  def payloads(&block)
    seen = []
    listener = ->(*, payload) { seen << payload unless payload[:name] == "SCHEMA" }
    ActiveSupport::Notifications.subscribed(listener, "sql.active_record", &block)
    seen
  end
end

RSpec.configure do |config|
  config.disable_monkey_patching!
  config.mock_with(:rspec) { |mocks| mocks.verify_partial_doubles = true }
  config.include Databases
  config.order = :random
end
