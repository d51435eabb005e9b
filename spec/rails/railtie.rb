# frozen_string_literal: true

require "open3"
require "tmpdir"

RSpec.describe "Rails" do
  # A small application in a process of its own: Rails can be set up only once in each.
  def rails(script, folder)
    Open3.capture2e(RbConfig.ruby, "-e", <<~RUBY, chdir: folder)
      require "rails"
      require "active_record/railtie"
      require "candle/active_record"
      class Application < Rails::Application
        config.root = Dir.pwd
        config.eager_load = false
        config.logger = Logger.new($stdout)
        config.log_level = :warn
        config.candle.preload = [#{Databases::MODEL.dump}]
      end
      ENV["DATABASE_URL"] = "sqlite3::memory:"
      Application.initialize!
      #{script}
    RUBY
  end

  it "preloads models and takes the application's logger" do
    Dir.mktmpdir do |folder|
      output, status = rails(<<~RUBY, folder)
        print Candle::ModelRegistry.shared.uses.inspect, Candle.logger.equal?(Rails.logger),
              ActiveRecord::Base.respond_to?(:has_embedding)
      RUBY
      expect([output, status.success?]).to eq(["#{{ Databases::MODEL => 0 }.inspect}truetrue", true])
    end
  end

  it "has all of red-candle loaded with an application that is loaded eagerly" do
    Dir.mktmpdir do |folder|
      output, = rails(<<~RUBY, folder)
        print Rails.application.config.eager_load_namespaces.include?(Candle)
      RUBY
      expect(output).to eq("true")
    end
  end

  it "logs each call of a model at debug" do
    Dir.mktmpdir do |folder|
      output, = rails(<<~RUBY, folder)
        model = Candle::EmbeddingModel.from_pretrained(#{Databases::MODEL.dump}, device: "cpu")
        model.embed("fox")
        Rails.logger.level = Logger::DEBUG
        model.embed(%w[fox dog])
      RUBY
      expect(output.scan(/Candle embed \(\d+\.\d+ms\) .* on cpu: (\d+) in a batch, \d+ tokens/)).to eq([["2"]])
    end
  end

  it "generates migrations that run both ways" do
    Dir.mktmpdir do |folder|
      output, status = rails(<<~RUBY, folder)
        require "rails/generators"
        Rails::Generators.invoke("candle:embedding", %w[Article content --dimensions 8 --bits])
        Rails::Generators.invoke("candle:jobs", [])
        ActiveRecord::Schema.verbose = false
        ActiveRecord::Migration.verbose = false
        ActiveRecord::Base.connection.create_table(:articles)
        context = ActiveRecord::Base.connection.migration_context
        context.migrate
        puts ActiveRecord::Base.connection.columns(:articles).map(&:name).inspect
        puts ActiveRecord::Base.connection.tables.grep(/candle/).sort.inspect
        context.rollback(2)
        puts ActiveRecord::Base.connection.columns(:articles).map(&:name).inspect
      RUBY
      expect(status).to be_success, output
      expect(output).to include("has_embedding :content, model: \"...\", dimensions: 8, bits: true")
      expect(output.lines.last(3).join).to eq(<<~TEXT)
        ["id", "embedding", "embedding_bits", "embedding_digest"]
        ["candle_runs", "candle_set_aside", "candle_slices"]
        ["id"]
      TEXT
      migration = File.read(Dir[File.join(folder, "db/migrate/*_add_embedding_to_articles.rb")].first)
      expect(migration).to include("add_embedding :articles, :embedding, dimensions: 8, bits: true\n")
      expect(migration).to include("add_embedding_index :articles, :embedding_bits, using: :hnsw, type: :bit if")
    end
  end

  it "generates what the options ask for" do
    Dir.mktmpdir do |folder|
      rails(<<~RUBY, folder)
        require "rails/generators"
        Rails::Generators.invoke("candle:embedding", %w[Page body --dimensions 3 --column meaning --type halfvec
                                                        --index ivfflat --distance euclidean])
      RUBY
      migration = File.read(Dir[File.join(folder, "db/migrate/*_add_meaning_to_pages.rb")].first)
      expect(migration).to include("add_embedding :pages, :meaning, dimensions: 3, type: :halfvec\n",
                                   ":pages, :meaning, using: :ivfflat, type: :halfvec, distance: :euclidean if")
    end
  end
end
