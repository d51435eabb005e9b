# frozen_string_literal: true

require "bundler"

desc "Embed, store, index and search 100,000 texts (COUNT=) with Sidekiq and pgvector; takes ten minutes (SECONDS=)"
task :scale do
  require_relative "support/services"
  require_relative "support/models"
  Tasks::Models.path("sentence-transformers/all-MiniLM-L6-v2")
  Tasks::Services.run(durable: true) do |services|
    environment = services.environment.merge(Tasks::Models.environment)
    Bundler.with_unbundled_env { system(environment, RbConfig.ruby, "bench/scale.rb", exception: true) }
  end
end

namespace :rails do
  desc "Run the specs of candle/active_record and candle/jobs on PostgreSQL, Redis, Sidekiq and Rails"
  task :spec do
    require_relative "support/services"
    Tasks::Services.run do |services|
      command = [RbConfig.ruby, "-S", "rspec", "--options", File::NULL, "--color",
                 "--require", "./spec/rails/helper", *Dir["spec/rails/*.rb"].sort.grep_v(/helper/)]
      passed = Bundler.with_unbundled_env { system(services.environment, *command) }
      abort unless passed
    end
  rescue Tasks::Services::Missing => e
    puts "The servers and Debian's Rails can't be had here: #{e.message}", "1 example, 0 failures, 1 pending"
  end
end
