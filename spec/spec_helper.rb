# frozen_string_literal: true

require "candle"

Dir[File.join(__dir__, "support", "**", "*.rb")].sort.each { |file| require file }

RSpec.configure do |config|
  config.disable_monkey_patching!
  config.expect_with(:rspec) { |expectations| expectations.syntax = :expect }
  config.mock_with(:rspec) { |mocks| mocks.verify_partial_doubles = true }
  config.example_status_persistence_file_path = File.join(__dir__, "..", ".rspec_status")
  config.filter_run_when_matching :focus
  config.order = :random
  Kernel.srand config.seed

  # Which example runs, for who sees the process hang; SIGQUIT tells where.
  config.before { |example| Process.setproctitle("rspec #{example.location}") }
  trap("QUIT") { Thread.list.each { |thread| warn(thread.inspect, *thread.backtrace) } }

  # `CANDLE_GC_STRESS=1 rspec --tag gc_stress` runs the core again with a
  # collection at every allocation. It is a minor one, of the objects that the
  # example made: with those of RSpec, made old before, it would take minutes.
  # A full one follows the example.
  if ENV["CANDLE_GC_STRESS"] == "1"
    minor_only = 0x01
    config.before(:suite) { 4.times { GC.start } }
    config.around(:each, :gc_stress) do |example|
      GC.stress = minor_only
      example.run
    ensure
      GC.stress = false
      GC.start
    end
  end
end
