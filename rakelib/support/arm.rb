# frozen_string_literal: true

require_relative "build"
require_relative "cross"

module Tasks
  # Runs the CPU's kernels as a 64-bit ARM processor runs them, emulated on whatever this machine has: Apple's
  # and Amazon's processors take NEON, which no x86 executes.
  class Arm
    TARGET = "aarch64-unknown-linux-musl"
    FOLDER = File.join(Build.cache_directory, "arm")
    EMULATOR = "qemu-aarch64"
    # The emulated processor has every feature, the products of bytes among them.
    SETTINGS = {
      "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER" => "#{EMULATOR} -cpu max",
      # zig brings the C library and what a program begins with.
      "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUSTFLAGS" => "-Clink-self-contained=no",
      "CARGO_PROFILE_RELEASE_LTO" => "off", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS" => "16",
      "CANDLE_CPU_ISA" => "bf16"
    }.freeze
    # Only the kernels have code for ARM.
    KERNELS = %w[--release --package red-candle-kernels --features selftest --lib].freeze

    def initialize
      @cross = Cross.new(TARGET, FOLDER)
    end

    # @raise [Tools::Missing] when a tool is missing and may not be installed
    def prepare
      @cross.prepare(Tools.find(EMULATOR) ? [] : %w[qemu-user])
    end

    def test
      @cross.cargo("test", *KERNELS, settings: SETTINGS)
    end

    # @param name [String] of a program of the engine's
    # @return [String] its path; it keeps the names of functions
    def program(name)
      @cross.cargo("rustc", "--release", "--package", "red-candle-engine", "--features", "selftest", "--bin", name,
                   "--", "-Cstrip=none", settings: SETTINGS)
      File.join(@cross.target_directory, TARGET, "release", name)
    end

    # @return [String] the kernels as a library, which keeps the names of functions
    def library
      @cross.cargo("build", *KERNELS, settings: SETTINGS)
      File.join(@cross.target_directory, TARGET, "release/libkernels.rlib")
    end
  end
end
