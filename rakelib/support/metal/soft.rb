# frozen_string_literal: true

require "etc"
require "fileutils"
require "open3"
require "rbconfig"
require "tmpdir"
require_relative "../build"
require_relative "../tools"

module Tasks
  module Metal
    # Builds the engine's programs and the Ruby extension on the software device of ext/softmetal, and runs them there.
    class Soft
      WORKSPACE = File.join(Build::ROOT, "ext/softmetal")
      FOLDER = File.join(Build.cache_directory, "softmetal")
      # Where compiled kernels are kept between runs.
      KERNELS = File.join(FOLDER, "kernels")
      # A folder for Ruby's load path, with the extension in it.
      LIBRARY = File.join(Build::ROOT, "tmp/softmetal/lib")
      # What kernels of candle's do that Metal's debug layer would refuse and that changes no result: gemv and gemv_t
      # declare a bias which they do not read, and their lanes leave before a barrier.
      KNOWN = /\Agemv_\w+: (buffer argument 2 is not set|a barrier that not all lanes)/
      PROGRAMS = %w[softmetal red-candle-engine softmetal-programs].freeze

      # What a run said, whether it succeeded, what the device found wrong, and what it counted: events by name, and
      # kernels with their dispatches, bytes read and bytes written.
      Run = Struct.new(:output, :status, :findings, :events, :kernels, :seconds, keyword_init: true) do
        # @return [Boolean] whether it succeeded and nothing was found
        def clean?
          status.success? && findings.empty?
        end
      end

      # @return [String] where cargo builds; SOFTMETAL_TARGET_DIR names another folder
      def self.target_directory
        given = ENV.fetch("SOFTMETAL_TARGET_DIR", "")
        given.empty? ? File.join(FOLDER, "target") : File.expand_path(given, Build::ROOT)
      end

      def initialize(compiler = Tools.clang)
        @compiler = compiler
      end

      # Builds the device and the programs; ends the process where that fails.
      def build
        cargo("build", *PROGRAMS.flat_map { |package| ["--package", package] }, "--lib", "--bins")
      end

      # Builds the Ruby extension and puts it where {LIBRARY} says.
      def build_extension
        cargo("build", "--package", "red-candle-ext", environment: Build.ruby_environment)
        FileUtils.mkdir_p(File.join(LIBRARY, "candle"))
        FileUtils.cp(File.join(binaries, "libcandle.so"), File.join(LIBRARY, "candle/candle.so"))
      end

      def test
        cargo("test", "--package", "softmetal")
      end

      # @param command [Array<String>] a program of the build, or another command
      # @param settings [Hash{Symbol => Object}] the device's: `check: 1` is SOFTMETAL_CHECK=1
      # @return [Run]
      def run(*command, **settings)
        Dir.mktmpdir do |folder|
          files = { report: File.join(folder, "findings"), counts: File.join(folder, "counts") }
          started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
          output, status = Open3.capture2e(environment(settings.merge(files)), *command, chdir: Build::ROOT)
          seconds = Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
          findings, counts = files.values.map { |file| File.exist?(file) ? File.readlines(file, chomp: true) : [] }
          Run.new(output: output.scrub, status:, findings: findings.grep_v(KNOWN), seconds:, **parse(counts))
        end
      end

      # @return [String] the path of a built program
      def program(name)
        File.join(binaries, name)
      end

      # @return [Hash{String => String}] what a process needs to find the device
      def environment(settings = {})
        settings.to_h { |name, value| ["SOFTMETAL_#{name.to_s.upcase}", value.to_s] }
                .merge("SOFTMETAL_RUNTIME" => File.join(binaries, "libsoftmetal.so"), "SOFTMETAL_CLANG" => @compiler,
                       "SOFTMETAL_CACHE" => KERNELS, "CANDLE_BUILD" => "cpu")
      end

      # Runs jobs, as many at a time as there are processors.
      #
      # @param jobs [Array<Proc>]
      # @return [Array] their results, in order
      def self.in_parallel(jobs)
        queue = Queue.new
        jobs.each_with_index { |job, index| queue << [job, index] }
        queue.close
        results = Array.new(jobs.size)
        Array.new(Etc.nprocessors) do
          Thread.new do
            Thread.current.report_on_exception = false
            while (job, index = queue.pop)
              results[index] = job.call
            end
          end
        end.each(&:join)
        results
      end

      private

      def parse(counts)
        kernels, events = counts.map { |line| line.split("\t") }.partition { |words| words.first == "kernel" }
        { events: events.to_h.transform_values(&:to_i),
          kernels: kernels.to_h { |_, name, *numbers| [name, numbers.map(&:to_i)] } }
      end

      def binaries
        File.join(self.class.target_directory, "debug")
      end

      # Not with `--locked`: the engine's dependencies are the other lock file's affair, and this one follows them.
      def cargo(*words, environment: {})
        settings = { "CARGO_TARGET_DIR" => self.class.target_directory, "SOFTMETAL_CLANG" => @compiler,
                     "SOFTMETAL_CACHE" => KERNELS }
        return if system(environment.merge(settings), "cargo", *words, chdir: WORKSPACE)

        abort "cargo #{words.first} failed in ext/softmetal"
      end
    end
  end
end
