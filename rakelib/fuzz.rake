# frozen_string_literal: true

desc "Fuzz the readers of files with libFuzzer and AddressSanitizer: TARGETS=, SECONDS= of each"
task :fuzz do
  require_relative "support/fuzz"
  fuzz = Tasks::Fuzz.new(targets: ENV["TARGETS"]&.split(",") || Tasks::Fuzz.targets)
  fuzz.build
  fuzz.run(seconds: Integer(ENV.fetch("SECONDS", 60)))
  puts fuzz.report
  abort "the fuzzing found #{fuzz.findings.size} problems" unless fuzz.findings.empty?
end
