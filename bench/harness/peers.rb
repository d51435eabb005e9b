# frozen_string_literal: true

require "digest"
require "etc"
require "fileutils"
require_relative "../../rakelib/support/build"

module Bench
  # The Python virtual environment with the libraries we compare with. It lies
  # in the user's cache, is made on first use and again when the pinned
  # versions or the build flags change.
  module Peers
    REQUIREMENTS = File.expand_path("../requirements.txt", __dir__)
    # Which of llama.cpp's build options a CPU's flag turns on. AMX stays off:
    # its path crashes on some virtual machines, and it is named here so that it
    # is off even where a later version turns it on by itself.
    INSTRUCTION_SETS = {
      "avx" => "GGML_AVX", "avx2" => "GGML_AVX2", "fma" => "GGML_FMA", "f16c" => "GGML_F16C", "bmi2" => "GGML_BMI2",
      "sse4_2" => "GGML_SSE42", "avx_vnni" => "GGML_AVX_VNNI", "avx512f" => "GGML_AVX512",
      "avx512vbmi" => "GGML_AVX512_VBMI", "avx512_vnni" => "GGML_AVX512_VNNI", "avx512_bf16" => "GGML_AVX512_BF16"
    }.freeze
    LEFT_OUT = %w[GGML_AMX_TILE GGML_AMX_INT8 GGML_AMX_BF16].freeze

    module_function

    # @return [String] the directory of the virtual environment
    def directory
      File.join(Tasks::Build.cache_directory, "bench", "venv")
    end

    # @return [String] its interpreter
    def python
      File.join(directory, "bin", "python")
    end

    # Makes the environment unless it is there. One process at a time: a second
    # one waits for the first and then finds everything done.
    #
    # @return [String] the interpreter
    def prepare(output: $stdout)
      return python if ready?

      FileUtils.mkdir_p(File.dirname(directory))
      File.open("#{directory}.lock", File::CREAT | File::RDWR) do |lock|
        unless lock.flock(File::LOCK_EX | File::LOCK_NB)
          output.puts "Another process is installing the peers: waiting for it."
          lock.flock(File::LOCK_EX)
        end
        install(output) unless ready?
      end
      python
    end

    # @return [Boolean] whether what is installed is what is asked for
    def ready?
      File.exist?(stamp) && File.read(stamp) == wanted
    end

    def stamp
      File.join(directory, "installed")
    end

    # @return [String] names the pinned versions and the build flags
    def wanted
      Digest::SHA256.hexdigest(File.read(REQUIREMENTS) + cmake_arguments.join(" "))
    end

    def install(output)
      output.puts "Installing the peers into #{directory}, once: several gigabytes and a C++ build of 10 to 30 minutes."
      FileUtils.rm_f(stamp)
      step(output, "virtual environment", "python3", "-m", "venv", directory)
      builder, libraries = packages.partition { |line| line.start_with?("llama-cpp-python") }
      step(output, "libraries", python, "-m", "pip", "install", *quiet, *libraries)
      step(output, "llama.cpp (#{cmake_arguments.join(" ")})", build_environment,
           python, "-m", "pip", "install", *quiet, "--no-binary", "llama-cpp-python", *builder)
      File.write(stamp, wanted)
    end

    # @return [Array<String>] the pinned packages
    def packages
      File.readlines(REQUIREMENTS, chomp: true).reject { |line| line.empty? || line.start_with?("#") }
    end

    def build_environment
      { "CMAKE_ARGS" => cmake_arguments.join(" "), "CMAKE_BUILD_PARALLEL_LEVEL" => Etc.nprocessors.to_s,
        "PIP_ROOT_USER_ACTION" => "ignore" }
    end

    # On x86 every instruction set is named; elsewhere the compiler is asked.
    #
    # @return [Array<String>]
    def cmake_arguments(flags: cpu_flags)
      return ["-DLLAVA_BUILD=OFF"] if flags.empty?

      switches = INSTRUCTION_SETS.map { |flag, option| "-D#{option}=#{flags.include?(flag) ? "ON" : "OFF"}" }
      ["-DLLAVA_BUILD=OFF", "-DGGML_NATIVE=OFF", *switches, *LEFT_OUT.map { |option| "-D#{option}=OFF" }]
    end

    # @return [Array<String>] what /proc/cpuinfo says on x86; empty elsewhere
    def cpu_flags
      File.foreach("/proc/cpuinfo").find { |line| line.start_with?("flags") }.to_s.split(":", 2).last.to_s.split
    rescue Errno::ENOENT
      []
    end

    def step(output, name, *command)
      started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      output.puts "  #{name} ..."
      system(*command, exception: true)
      output.puts format("  done in %d s", Process.clock_gettime(Process::CLOCK_MONOTONIC) - started)
    end

    # pip draws its progress bar only on a terminal; elsewhere its lines are noise.
    def quiet
      $stdout.tty? ? [] : ["--quiet"]
    end
  end
end
