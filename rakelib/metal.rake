# frozen_string_literal: true

namespace :metal do
  desc "Run the Metal kernels on this machine's CPU, and see that broken ones are noticed"
  task :test do
    next puts "made for Linux; here is the real thing: rake metal:selftest" if Tasks::Build.darwin?

    require_relative "support/metal/harness"
    abort "rake metal:test failed" unless Tasks::Metal::Harness.new.run
  end

  desc "See that all candle crates of the gem get their Metal code in a macOS build"
  task :features do
    require_relative "support/metal/features"
    abort "rake metal:features failed" unless Tasks::Metal::Features.new.run
  end

  desc "See that no custom op we reach lacks a Metal forward"
  task :audit do
    require_relative "support/metal/audit"
    abort "rake metal:audit failed" unless Tasks::Metal::Audit.new.run
  end

  desc "Type-check the gem for macOS"
  task :check do
    require_relative "support/metal/darwin"
    Tasks::Metal::Darwin.new.tap(&:prepare).check
  rescue Tasks::Tools::Missing => e
    abort "rake metal:check #{e.message}"
  end

  desc "Link the gem for macOS and look up the symbols it imports"
  task :link do
    require_relative "support/metal/darwin"
    abort "rake metal:link failed" unless Tasks::Metal::Darwin.new.tap(&:prepare).link
  rescue Tasks::Tools::Missing => e
    abort "rake metal:link #{e.message}"
  end

  desc "In continuous integration: check and link for macOS where the tools are there or can be installed"
  task :darwin do
    next puts "only in continuous integration; by hand: rake metal:check metal:link" \
      unless Tasks::Build.continuous_integration?

    require_relative "support/metal/darwin"
    darwin = Tasks::Metal::Darwin.new
    begin
      darwin.prepare
    rescue Tasks::Tools::Missing => e
      next puts "not checked for macOS: #{e.message}"
    end
    darwin.check
    abort "rake metal:link failed" unless darwin.link
  end

  desc "Run the kernels' cases on a real Metal device, where there is one"
  task :selftest do
    next puts "no Metal device here: rake metal:test runs the kernels on the CPU instead" unless Tasks::Build.darwin?

    sh "cargo", "run", "--release", "--locked", "--package", "red-candle-engine", "--features", "selftest",
       "--bin", "kernels_selftest", "--", "--device", "metal"
  end
end
