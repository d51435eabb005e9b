# frozen_string_literal: true

namespace :cargo do
  desc "Check the formatting of the Rust code"
  task :format do
    sh "cargo", "fmt", "--all", "--check"
  end

  desc "Lint all crates, the self-tests of devices among them; a warning is an error"
  task :clippy do
    command = "cargo clippy --release --locked --workspace --all-targets --features red-candle-engine/selftest " \
              "-- -D warnings"
    puts command
    sh Tasks::Build.ruby_environment, command, verbose: false
  end

  desc "Run the tests of every crate without Ruby"
  task :test do
    packages = %w[base kernels formats engine].flat_map { |name| ["--package", "red-candle-#{name}"] }
    sh "cargo", "test", "--release", "--locked", "--no-fail-fast", *packages, "--lib", "--test", "suite"
  end
end
