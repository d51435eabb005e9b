# frozen_string_literal: true

# Compares the named fixtures on the Metal device with the CPU.
require "candle"
require_relative "../../../bench/gpu/pictures"
require_relative "../../../bench/gpu/results"

results = GpuBench::Results.new({})
GpuBench::Pictures.new("metal", results, names: ARGV).run
exit(results.passed?)
