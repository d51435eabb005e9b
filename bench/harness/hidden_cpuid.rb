# frozen_string_literal: true

require "fileutils"
require_relative "peers"

module Bench
  # Limits a process to an instruction set, whatever its libraries would detect: a small library that is preloaded lets
  # CPUID trap and leaves out what lies above the level. Linux on x86 with a processor that can, and a C compiler.
  module HiddenCpuid
    SOURCE = File.expand_path("../workers/hidden_cpuid.c", __dir__)
    LEVELS = %w[avx2 avxvnni avx512 avx512vnni].freeze

    module_function

    # @param level [String] one of {LEVELS}
    # @return [Hash{String => String}] what a process needs
    def environment(level)
      raise ArgumentError, "no level #{level}: #{LEVELS.join(", ")}" unless LEVELS.include?(level)

      { "LD_PRELOAD" => library, "BENCH_LEVEL" => level }
    end

    # @return [String] the library, compiled on first use
    def library
      path = File.join(Tasks::Build.cache_directory, "bench", "hidden_cpuid.so")
      return path if File.exist?(path) && File.mtime(path) > File.mtime(SOURCE)

      FileUtils.mkdir_p(File.dirname(path))
      system(ENV.fetch("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", path, SOURCE, exception: true)
      path
    end
  end
end
