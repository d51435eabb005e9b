# frozen_string_literal: true

desc "Attack the gem with damaged files and hostile arguments: COUNT= of each kind, SEED=, KINDS=, SECONDS="
task :attack do
  require_relative "support/attack"
  kinds = ENV["KINDS"]&.split(",") || Tasks::Attack::KINDS
  attack = Tasks::Attack.new(seed: Integer(ENV.fetch("SEED", 1)), kinds: kinds)
  attack.run(count: Integer(ENV.fetch("COUNT", 1000)), seconds: ENV["SECONDS"]&.to_f)
  puts attack.report
  abort "the attack found #{attack.findings.size} problems" unless attack.findings.empty?
end
