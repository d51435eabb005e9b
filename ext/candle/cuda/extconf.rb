# frozen_string_literal: true

require_relative "../build_options"

# The second build, with CUDA, where that was asked for. It links NVIDIA's
# libraries and can't be loaded without them, so it stands beside the first.
features = BuildOptions.take_features
if features.intersect?(BuildOptions::CUDA_FEATURES)
  BuildOptions.check_cuda
  BuildOptions.write_makefile("candle/cuda/candle", features, crate: "./..")
else
  BuildOptions.write_empty_makefile
end
