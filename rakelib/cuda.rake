# frozen_string_literal: true

namespace :compile do
  desc "Build the extension with CUDA beside the other one; needs NVIDIA's toolkit, but no GPU"
  task :cuda do
    features = Tasks::Build.features | ["cuda"]
    environment = Tasks::Build.environment_of("cuda")
    sh Tasks::Build.ruby_environment.merge(environment), "cargo", "build", "--release", "--locked",
       "--package", "red-candle-ext", "--features", features.join(","), verbose: false
    mkdir_p "lib/candle/cuda", verbose: false
    cp File.join(environment["CARGO_TARGET_DIR"], "release", "libcandle.so"), "lib/candle/cuda/candle.so"
  end
end

task compile: "compile:cuda" if Tasks::Build.features.any? { |feature| feature.start_with?("cu") }
