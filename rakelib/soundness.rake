# frozen_string_literal: true

desc "Run the tests of unsafe code and of readers in valgrind: TESTS= are names or parts of them"
task :memcheck do
  require_relative "support/soundness"
  Tasks::Soundness.memcheck(ENV["TESTS"]&.split(","))
end

desc "Run the tests of unsafe code in miri: TESTS= are names or parts of them; needs Rust nightly"
task :miri do
  require_relative "support/soundness"
  Tasks::Soundness.miri(ENV["TESTS"]&.split(","))
end

desc "Run the tests of threads with ThreadSanitizer: TESTS= are names or parts of them"
task :tsan do
  require_relative "support/soundness"
  Tasks::Soundness.tsan(ENV["TESTS"]&.split(","))
end
