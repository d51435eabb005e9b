# frozen_string_literal: true

namespace :bench do
  desc "Time our kernels beside candle-nn's, in one release build and run"
  task :kernels do
    sh "cargo", "run", "--release", "-p", "red-candle-engine", "--example", "bench_kernels"
  end
end
