# frozen_string_literal: true

require "fileutils"
require "open3"
require "tmpdir"
require_relative "build"
require_relative "rust"

module Tasks
  # The fuzz targets of ext/fuzz, built with libFuzzer's coverage and AddressSanitizer. `cargo fuzz` finds them there
  # too, but isn't needed.
  class Fuzz
    FOLDER = File.join(Build::ROOT, "ext/fuzz")
    FLAGS = %w[-Zsanitizer=address -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
               -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
               -Cllvm-args=-sanitizer-coverage-trace-compares --cfg=fuzzing].freeze
    # One input may take so many seconds, the process so many megabytes, and one allocation of it so many.
    LIMITS = %w[-timeout=20 -rss_limit_mb=3000 -malloc_limit_mb=600].freeze

    Finding = Struct.new(:target, :input, :reason) do
      def to_s = "#{target}: #{reason} (#{input})"
    end

    # @return [Array<String>] the names of all targets
    def self.targets = Dir[File.join(FOLDER, "fuzz_targets/*.rs")].map { |path| File.basename(path, ".rs") }.sort

    attr_reader :executions, :findings

    def initialize(targets: self.class.targets)
      unknown = targets - self.class.targets
      raise ArgumentError, "there is no target #{unknown.first}" unless unknown.empty?

      @targets = targets
      @executions = {}
      @findings = []
    end

    def build
      # For a target that is named, so that build scripts and macros are built without the sanitizer.
      command = ["cargo", "build", "--release", "--locked", "--target", Rust.platform,
                 *@targets.flat_map { |name| ["--bin", name] }]
      system({ **Rust::UNSTABLE, "RUSTFLAGS" => FLAGS.join(" "), "CARGO_TARGET_DIR" => folder }, *command,
             chdir: FOLDER, exception: true)
    end

    # @param seconds [Integer] for each target
    def run(seconds:)
      @targets.each { |name| fuzz(name, seconds) }
    end

    # @return [String] one line per finding, then the counts
    def report
      counts = executions.map { |name, count| "#{name} #{count}" }.join(", ")
      [*findings, "#{executions.values.sum} inputs (#{counts}): #{findings.size} found"].join("\n")
    end

    private

    def folder = Rust.folder("fuzz")

    # What is found to reach new code is kept in the build folder, and the saved corpus is read besides.
    def fuzz(name, seconds)
      corpus = File.join(folder, "corpus", name)
      found = File.join(folder, "found", name)
      [corpus, found].each { |path| FileUtils.mkdir_p(path) }
      program = File.join(folder, Rust.platform, "release", name)
      command = [program, "-max_total_time=#{seconds}", "-print_final_stats=1", "-artifact_prefix=#{found}/", *LIMITS,
                 corpus, File.join(FOLDER, "corpus", name)]
      output, status = Open3.capture2e({ "TMPDIR" => temporary }, *command)
      executions[name] = output[/number_of_executed_units:\s+(\d+)/, 1].to_i
      return if status.success?

      reason = output[/panicked at .*\n.*/] || output[/ERROR: .*/] || "it ended with #{status.inspect}"
      findings << Finding.new(name, output[/Test unit written to (.+)/, 1] || "no input", reason.tr("\n", " "))
    end

    # Readers want files, of which memory has the fastest.
    def temporary = File.writable?("/dev/shm") ? "/dev/shm" : Dir.tmpdir
  end
end
