# frozen_string_literal: true

require_relative "build_options"

# The build that every machine can load; cuda/extconf.rb makes the other one.
features = BuildOptions.take_features - BuildOptions::CUDA_FEATURES
BuildOptions.write_makefile("candle/candle", features)
