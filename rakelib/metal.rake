# frozen_string_literal: true

namespace :metal do
  desc "Run the Metal kernels on this machine's CPU, and see that broken ones are noticed"
  task :test do
    require_relative "support/metal/harness"
    abort "rake metal:test failed" unless Tasks::Metal::Harness.new.run
  end
end
