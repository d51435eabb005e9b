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

namespace :fuzz do
  desc "Compare random texts with the tokenizers crate's encodings: COUNT= for each vocabulary, SEED=, MODELS="
  task :tokenizers do
    require_relative "support/tokenizers"
    count = ENV.fetch("COUNT", "1000000")
    seed = ENV.fetch("SEED", "1")
    models = ENV["MODELS"]&.split(",") || Tasks::Tokenizers::MODELS
    Tasks::Tokenizers.run("fuzz", Integer(count).to_s, Integer(seed).to_s, *Tasks::Tokenizers.paths(models))
  end
end
