# frozen_string_literal: true

namespace :metal do
  # The software device of ext/softmetal, for the tasks that build on it; nil on macOS.
  soft = lambda do
    return puts "made for Linux; here is the real thing: rake metal:selftest" if Tasks::Build.darwin?

    require_relative "support/metal/soft"
    Tasks::Metal::Soft.new
  rescue Tasks::Tools::Missing => e
    abort "the software Metal device #{e.message}"
  end

  desc "Run everything that runs on the software Metal device: its own tests, kernels, models, budget, specs"
  task soft: %w[metal:soft:test metal:kernels:few metal:models metal:budget metal:specs]

  namespace :soft do
    desc "Test the software Metal device itself"
    task :test do
      soft.call&.test
    end
  end

  kernels = lambda do |whole|
    next unless (device = soft.call)

    device.build
    require_relative "support/metal/kernels"
    abort "the Metal kernels failed" unless Tasks::Metal::Kernels.new(device).run(whole:)
  end

  desc "Run the Metal kernels on the software device, large cases, too, and see that all broken ones are noticed"
  task :kernels do
    kernels.call(true)
  end

  namespace :kernels do
    desc "Run the Metal kernels on the software device, and see that a quarter of the broken ones are noticed"
    task :few do
      kernels.call(false)
    end
  end

  pictures = lambda do |device, **names|
    device.build_extension
    require_relative "support/metal/pictures"
    Tasks::Metal::Pictures.new(device, **names).run
  end

  desc "Run every tiny checkpoint and one seeded one per mechanism on the software Metal device; planted bugs too"
  task :models do
    next unless (device = soft.call)

    device.build
    require_relative "support/metal/models"
    passed = [Tasks::Metal::Models.new(device).run, pictures.call(device)].all?
    abort "rake metal:models failed" unless passed
  end

  namespace :models do
    desc "Run every seeded checkpoint on the software Metal device"
    task :seeded do
      next unless (device = soft.call)

      device.build
      require_relative "support/metal/models"
      models = Tasks::Metal::Models.new(device, seeded: Dir.children(Tasks::Metal::Models::SEEDED).sort)
      abort "rake metal:models:seeded failed" unless models.seeded
    end

    desc "Run every seeded model of images on the software Metal device: NAMES= of folders below spec/fixtures"
    task :pictures do
      next unless (device = soft.call)

      device.build
      require_relative "support/metal/pictures"
      names = ENV["NAMES"]&.split(",") || Tasks::Metal::Pictures::ALL
      abort "rake metal:models:pictures failed" unless pictures.call(device, names: names)
    end
  end

  desc "Run the specs that take a device on an extension built on the software Metal device"
  task :specs do
    next unless (device = soft.call)

    device.build
    device.build_extension
    require_relative "support/metal/models"
    abort "rake metal:specs failed" unless Tasks::Metal::Models.new(device).specs
  end

  budget = lambda do
    next unless (device = soft.call)

    device.build
    require_relative "support/metal/budget"
    Tasks::Metal::Budget.new(device)
  end

  desc "Count what a token and a batch of texts make the software device do, and hold it to limits"
  task :budget do
    next unless (counting = budget.call)

    abort "rake metal:budget failed" unless counting.run
  end

  namespace :budget do
    desc "Write what rake metal:budget counts into docs/internals/metal.md"
    task :write do
      budget.call&.write
    end
  end

  desc "See that all candle crates of the gem get their Metal code in a macOS build"
  task :features do
    require_relative "support/metal/features"
    abort "rake metal:features failed" unless Tasks::Metal::Features.new.run
  end

  desc "See that every custom op we reach has a Metal forward"
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

  desc "In continuous integration: build and link for macOS where the tools are there or can be installed"
  task :darwin do
    next puts "only in continuous integration; by hand: rake metal:link" \
      unless Tasks::Build.continuous_integration?

    require_relative "support/metal/darwin"
    darwin = Tasks::Metal::Darwin.new
    begin
      darwin.prepare
    rescue Tasks::Tools::Missing => e
      next puts "not checked for macOS: #{e.message}"
    end
    abort "rake metal:link failed" unless darwin.link
  end

  # A program of the engine on a Mac's own device.
  run = lambda do |name, *arguments|
    sh Tasks::Build.environment_of("selftest"), "cargo", "run", "--release", "--locked", "--package",
       "red-candle-engine", "--features", "selftest,metal", "--bin", name, "--", *arguments
  end

  desc "Measure products on a Metal GPU and say which tiles to change; elsewhere, see that the measuring works"
  task :tune do
    next run.call("metal_tune") if Tasks::Build.darwin?

    device = soft.call
    device.build
    tried = device.run(device.program("metal_tune"), "--small")
    puts tried.output, "this device is a program, and the times are its own"
    abort "rake metal:tune failed" unless tried.clean?
  end

  desc "Run the kernels' cases on a real Metal device, where there is one"
  task :selftest do
    next puts "no Metal device here: rake metal:kernels has a software one" unless Tasks::Build.darwin?

    run.call("kernels_selftest", "--device", "metal")
  end
end
