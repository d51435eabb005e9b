# frozen_string_literal: true

namespace :bench do
  desc "Measure memory while 100,000 texts go through embed_each"
  task memory: :compile do
    ruby "-Ilib", "bench/embed_each_memory.rb"
  end

  desc "Time our kernels beside candle-nn's, in one release build and run"
  task :kernels do
    sh "cargo", "run", "--release", "-p", "red-candle-engine", "--example", "bench_kernels"
  end
end
