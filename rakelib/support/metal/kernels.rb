# frozen_string_literal: true

require "tempfile"
require_relative "mutants"
require_relative "soft"

module Tasks
  module Metal
    # Runs our Metal kernels on the software device: cases against an f64 reference under several schedules, then
    # watched access by access, then every mutant, which must fail; and checks their address spaces.
    class Kernels
      SOURCES = File.join(Build::ROOT, "ext/kernels/src/metal")
      ADDRESS_SPACES = File.join(Soft::WORKSPACE, "crates/device/include/address_spaces.h")
      # The source files, and whose cases run the kernels of each.
      SUBJECTS = {
        "norm" => %w[layer_norm rms_norm add_layer_norm add_rms_norm],
        "softmax" => %w[softmax softmax_masked],
        "activation" => %w[activation gated],
        "rope" => %w[rope rope_store],
        "pooling" => %w[mean_pool l2_normalize],
        "largest" => %w[largest],
        "sampling" => %w[sampling],
        "product" => %w[product],
        "blocks" => %w[blocks],
        "attention" => %w[attention],
        "heads" => %w[head_product],
        "scan" => %w[scan],
        "scan_gates" => %w[scan_gates]
      }.freeze
      # What a source has before it beside `common`, and what a launcher puts behind it.
      BEFORE = { "activation" => %w[functions], "product" => %w[functions blocks tiles], "scan" => %w[functions],
                 "scan_gates" => %w[functions] }.freeze
      TILES = %w[FEW_OUTPUTS FEW_SIMDGROUPS FEW_ROWS].map { |name| "constant constexpr uint #{name} = 4;\n" }.join
      INSTANCES = "typedef %<formats>s Formats;\nPRODUCT_KERNELS(any, half)\n"
      FORMAT = /^struct (\w+) \{\n    enum : uint/
      # Layers that are made of kernels of ours and of candle's.
      LAYERS = %w[linear joined_columns gated_norm].freeze
      ADDRESS_SPACE_FLAGS = %w[
        -x clcpp -cl-std=CLC++2021 --target=spir64 -cl-no-stdinc -fsyntax-only -Wno-everything
        -Xclang -cl-ext=-__opencl_c_generic_address_space,-__opencl_c_pipes,-__opencl_c_device_enqueue
      ].freeze
      SCHEDULES = { "late, forwards" => {}, "at once, backwards" => { schedule: "backwards", eager: 1 } }.freeze
      # GPUs of other sizes than the device says that it has, by the last letter of their architecture.
      SIZES = { "Max" => "applegpu_g13s", "Ultra" => "applegpu_g13d" }.freeze
      # All lanes of a simdgroup have to take part in its functions: ours promise that, candle's do not.
      WATCHED = { check: 1, strict: 1, schedule: "shuffled" }.freeze

      # In how many parts mutants are run.
      SHARES = 4

      Outcome = Struct.new(:title, :success, :output)

      def initialize(soft = Soft.new, compiler = Tools.clang)
        @soft = soft
        @compiler = compiler
      end

      # @param whole [Boolean] whether the largest cases run, too, and all mutants
      # @return [Boolean] whether every check passed; says what each found
      def run(whole: true)
        [report("cases", [*schedules, *rows, *sizes, *(large if whole)]), report("watched", watched),
         report("address spaces", address_spaces),
         report("mutants", mutants(whole).map { |mutant| -> { run_mutant(mutant) } })].all?
      end

      # A quarter of the mutants, of every file some, which changes from commit to commit: each has to be compiled.
      #
      # @param whole [Boolean] whether all of them
      # @return [Array<Mutant>]
      def mutants(whole, commits: self.class.commits)
        return MUTANTS if whole

        MUTANTS.each_with_index.select { |_, index| index % SHARES == commits % SHARES }.map(&:first)
      end

      # @return [Integer] how many commits led to this one; 0 where that is not known
      def self.commits
        output, status = Open3.capture2e("git", "rev-list", "--count", "HEAD", chdir: Build::ROOT)
        status.success? ? output.to_i : 0
      end

      private

      def report(title, jobs)
        started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        outcomes = Soft.in_parallel(jobs)
        puts "#{title}:"
        outcomes.each { |outcome| puts "  #{outcome.success ? "ok  " : "FAIL"} #{outcome.title}: #{outcome.output}" }
        good = outcomes.count(&:success)
        seconds = Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
        puts format("  %<good>d of %<all>d as expected, %<seconds>.0f s", good:, all: outcomes.size, seconds:)
        good == outcomes.size
      end

      # As late as Metal allows, and at once with threadgroups backwards.
      def schedules
        SCHEDULES.flat_map do |title, settings|
          [*SUBJECTS.values, LAYERS].map do |kernels|
            -> { outcome("#{title}: #{kernels.join(", ")}", selftest(["--few", *kernels], **settings)) }
          end
        end
      end

      # Products of 1 to 512 rows with small matrices of every format.
      def rows
        %w[product blocks].map { |kernel| -> { outcome("1 to 512 rows: #{kernel}", selftest(["--rows", kernel])) } }
      end

      # What is launched in another way on larger GPUs.
      def sizes
        SIZES.map do |name, architecture|
          -> { outcome("on #{name}: product, attention", selftest(%w[--few product attention], architecture:)) }
        end
      end

      # The cases that `--few` leaves out, kernel by kernel.
      def large
        [*SUBJECTS.values.flatten, *LAYERS].map do |kernel|
          -> { outcome("all cases: #{kernel}", selftest([kernel])) }
        end
      end

      def watched
        SUBJECTS.map { |subject, kernels| -> { outcome(subject, selftest(["--few", *kernels], **WATCHED)) } }
      end

      def selftest(arguments, **settings)
        @soft.run(@soft.program("kernels_selftest"), "--device", "metal", *arguments, **settings)
      end

      def outcome(title, run)
        said = run.output[/\d+ cases/] || run.output.lines.last.to_s.strip
        said = "#{run.findings.size} findings, as #{run.findings.first}" if run.findings.any?
        failed = run.output[/^FAILED .*/]
        Outcome.new(title, run.clean?, [said, failed, format("%.0f s", run.seconds)].compact.join(", "))
      end

      def run_mutant(mutant)
        Tempfile.create("mutant") do |file|
          file.write(mutant.plant)
          file.close
          arguments = ["--few", "--stop-at-first", *(mutant.kernels || SUBJECTS.fetch(mutant.subject))]
          run = selftest(arguments, **WATCHED, fatal: 1, plant: file.path)
          told = run.findings.first || run.output[/^FAILED .*/]
          Outcome.new(mutant.name, !run.clean? && !told.nil?, told || "not caught: #{run.output.lines.last}")
        end
      end

      # @return [String] the Metal source of a subject as the launcher compiles it
      def source(subject)
        files = ["common", *BEFORE[subject], subject]
        texts = files.map { |file| file == "tiles" ? TILES : File.read(File.join(SOURCES, "#{file}.metal")) }
        [*texts, *instances(subject, texts)].join
      end

      def instances(subject, texts)
        case subject
        when "product" then format(INSTANCES, formats: "Several<Dense<half>, Q4K, Q8_0>")
        when "attention" then ["1, 1, 1", "8, 5, 8", "32, 32, 32"].map { |blocks| "ATTENTION_KERNELS(#{blocks})\n" }
        when "scan" then ["MATRIX_KERNEL(REPLACE, 33, 4)\n", "SELECTIVE_KERNEL(16)\n"]
        when "blocks" then texts.last.scan(FORMAT).flatten.map { |format| "TABLE_KERNELS(#{format}, #{format})\n" }
        end
      end

      # Metal has no generic pointers: a device pointer does not become a threadgroup pointer. Clang's C++ for
      # OpenCL keeps the same rules; the last job breaks one on purpose.
      def address_spaces
        jobs = SUBJECTS.keys.map { |subject| -> { check_address_spaces(subject, source(subject), true) } }
        mixed = source("pooling").sub("threadgroup float *other", "device float *other")
        jobs << -> { check_address_spaces("threadgroup memory read as device memory", mixed, false) }
      end

      def check_address_spaces(title, source, accepted)
        text = "#include \"#{ADDRESS_SPACES}\"\n#{source.gsub(/^#include <metal_stdlib>$/, "")}"
        output, status = Open3.capture2e(@compiler, *ADDRESS_SPACE_FLAGS, "-", stdin_data: text)
        verdict = status.success? ? "accepted" : output[/error: .*/] || output
        Outcome.new(title, status.success? == accepted, verdict)
      end
    end
  end
end
