# frozen_string_literal: true

require "rspec/core/rake_task"
require "rubocop/rake_task"

RSpec::Core::RakeTask.new(:spec)
RuboCop::RakeTask.new

namespace :spec do
  desc "Run the specs of the core again with a garbage collection at every allocation"
  RSpec::Core::RakeTask.new(:gc_stress) do |task|
    task.rspec_opts = "--tag gc_stress"
  end
  task(:gc_stress_environment) { ENV["CANDLE_GC_STRESS"] = "1" }
  task gc_stress: :gc_stress_environment
end

desc "Validate the signatures in sig/"
task :signatures do
  abort "rbs is not installed: gem install rbs" unless system("rbs", "--version", out: File::NULL, err: File::NULL)
  sh "rbs", "-I", "sig", "validate", "--silent"
end
