# frozen_string_literal: true

require "digest"
require "etc"
require "fileutils"
require "open3"
require_relative "../build"
require_relative "../tools"
require_relative "mutants"
require_relative "translator"

module Tasks
  module Metal
    # Compiles the Metal kernels for this machine and runs them: every case of every subject against an f64
    # reference, then every mutant, which must fail, and a check of the address spaces.
    class Harness
      SOURCES = File.join(Build::ROOT, "ext/engine/src/kernels/metal")
      HOST = File.join(Build::ROOT, "ext/engine/metal_host")
      OUTPUT = File.join(Build::ROOT, "tmp/metal_host")
      SUBJECTS = %w[norm softmax activation rope pooling].freeze

      COMMON_FLAGS = %W[-std=c++17 -Wall -I#{HOST}].freeze
      # Every operation rounds by itself, and a local variable nobody set is NaN.
      KERNEL_FLAGS = %w[
        -fPIC -shared -ffp-contract=off -fno-math-errno -ftrivial-auto-var-init=pattern
        -Wno-unused -Wno-unneeded-internal-declaration
      ].freeze
      # A mutant stops at its first failure: compiling it takes longer than running it.
      OPTIMIZED = "-O1"
      UNOPTIMIZED = "-O0"
      ADDRESS_SPACE_FLAGS = %w[
        -x clcpp -cl-std=CLC++2021 --target=spir64 -cl-no-stdinc -fsyntax-only -Wno-everything
        -Xclang -cl-ext=-__opencl_c_generic_address_space,-__opencl_c_pipes,-__opencl_c_device_enqueue
      ].freeze

      Outcome = Struct.new(:title, :success, :output)

      def initialize(compiler = Tools.clang)
        @compiler = compiler
        @translator = Translator.new(compiler)
      end

      # @return [Boolean] whether every check passed; says what each found
      def run
        started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        FileUtils.mkdir_p(OUTPUT)
        build_host
        results = report("kernels", SUBJECTS.map { |subject| -> { run_subject(subject) } }) &
                  report("address spaces", address_space_jobs) &
                  report("mutants", MUTANTS.map { |mutant| -> { run_mutant(mutant) } })
        puts format("%<seconds>.1f s with %<compiler>s",
                    seconds: Process.clock_gettime(Process::CLOCK_MONOTONIC) - started, compiler: @compiler)
        results
      end

      private

      def report(title, jobs)
        outcomes = in_parallel(jobs)
        puts "#{title}:"
        outcomes.each { |outcome| puts "  #{outcome.success ? "ok  " : "FAIL"} #{outcome.title}: #{outcome.output}" }
        failed = outcomes.count { |outcome| !outcome.success }
        puts "  #{outcomes.size - failed} of #{outcomes.size} as expected"
        failed.zero?
      end

      def in_parallel(jobs)
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

      def build_host
        sources = Dir[File.join(HOST, "*.cpp")]
        digest = digest_of(Dir[File.join(HOST, "*")].map { |path| File.read(path) })
        @program = File.join(OUTPUT, "host_kernels-#{digest}")
        return if File.exist?(@program)

        objects = in_parallel(sources.map { |source| -> { compile_object(source, digest) } })
        # The kernels call back into the program.
        command(@compiler, "-rdynamic", "-o", "#{@program}.new", *objects, "-ldl")
        File.rename("#{@program}.new", @program)
      end

      def compile_object(source, digest)
        object = File.join(OUTPUT, "#{File.basename(source, ".cpp")}-#{digest}.o")
        command(@compiler, OPTIMIZED, *COMMON_FLAGS, "-c", source, "-o", object)
        object
      end

      def run_subject(subject)
        output, status = Open3.capture2e(@program, library(subject, source(subject), OPTIMIZED), subject)
        Outcome.new(subject, status.success?, output.strip)
      end

      def run_mutant(mutant)
        library = library(mutant.subject, source(mutant.subject, mutant), UNOPTIMIZED)
        output, status = Open3.capture2e(@program, library, mutant.subject, "--stop-at-first")
        caught = status.exitstatus == 1
        Outcome.new(mutant.name, caught, caught ? output.lines.first.to_s.strip : "not caught: #{output.strip}")
      end

      # @return [String] the Metal source of a subject as the launcher compiles it, with a mutant's bug or without
      def source(subject, mutant = nil)
        ["common", subject].map do |file|
          text = File.read(File.join(SOURCES, "#{file}.metal"))
          mutant&.file == file ? mutant.apply(text) : text
        end.join
      end

      def library(subject, source, optimization)
        text = @translator.call(source)
        headers = Dir[File.join(HOST, "*.hpp")].map { |path| File.read(path) }
        base = File.join(OUTPUT, "#{subject}-#{digest_of([optimization, text, *headers])}")
        return "#{base}.so" if File.exist?("#{base}.so")

        File.write("#{base}.cpp", text)
        command(@compiler, optimization, *COMMON_FLAGS, *KERNEL_FLAGS, "#{base}.cpp", "-o", "#{base}.so.new")
        File.rename("#{base}.so.new", "#{base}.so")
        "#{base}.so"
      end

      # Metal has no generic pointers: a device pointer does not become a threadgroup pointer. Clang's C++ for
      # OpenCL keeps the same rules; the last job breaks one on purpose.
      def address_space_jobs
        jobs = SUBJECTS.map { |subject| -> { check_address_spaces(subject, source(subject), true) } }
        mixed = source("pooling").sub("threadgroup float *other", "device float *other")
        jobs << -> { check_address_spaces("threadgroup memory read as device memory", mixed, false) }
      end

      def check_address_spaces(title, source, accepted)
        text = "#include \"#{File.join(HOST, "address_spaces.h")}\"\n#{@translator.preprocess(source, [])}"
        output, status = Open3.capture2e(@compiler.sub("clang++", "clang"), *ADDRESS_SPACE_FLAGS, "-", stdin_data: text)
        verdict = status.success? ? "accepted" : output[/error: .*/] || output
        Outcome.new(title, status.success? == accepted, verdict)
      end

      def digest_of(texts)
        Digest::SHA256.hexdigest([@compiler, COMMON_FLAGS, KERNEL_FLAGS, *texts].join("\0"))[0, 16]
      end

      def command(*words)
        output, status = Open3.capture2e(*words)
        raise "#{words.first} failed:\n#{output}" unless status.success?
      end
    end
  end
end
