# frozen_string_literal: true

require_relative "build"
require_relative "rust"

module Tasks
  # Tests of the engine where something looks at every access to memory: valgrind; miri, an interpreter that knows what
  # Rust's unsafe code may do; and ThreadSanitizer, which knows what threads may do beside each other.
  module Soundness
    # Unsafe code, and the readers of files on damaged ones. Valgrind runs AVX2, not AVX-512.
    MEMCHECK = %w[cpu:: quant:: nn:: runtime::allocator runtime::job runtime::switch fuzz_readers].freeze
    # Templates and grammars are read on stacks of 256 MB: such an allocation is not an error.
    VALGRIND = "valgrind --quiet --error-exitcode=9 --max-stackframe=300000000"
    # What of the unsafe code miri can run: the allocator, the pools and jobs, the store of weights, packing, and the
    # kernels in their portable form. It knows no fork, no file maps and no instructions of AVX-512 and AMX; a million
    # small parts of work, which another test hands to the pools, would take it hours.
    MIRI = %w[runtime::allocator runtime::job runtime::switch runtime::stats runtime::cancel runtime::threads
              runtime::stack::tests::deep runtime::per_process cpu::product::store
              cpu::product::head_panels cpu::product::half_matrix
              cpu::product::blocks::quantize].freeze
    NOT_IN_MIRI = %w[--skip forked --skip keep_threads_awake].freeze
    # Threads in miri leak what they never end with; crossbeam and the allocator make pointers of numbers.
    MIRI_FLAGS = "-Zmiri-disable-isolation -Zmiri-permissive-provenance -Zmiri-tree-borrows -Zmiri-ignore-leaks " \
                 "-Zmiri-num-cpus=2"
    # What runs in several threads: the pools, jobs and switches, the scheduler, and dynamic batching.
    # Not what forks: ThreadSanitizer ends a child that starts threads.
    THREADS = %w[runtime:: serving scheduling dynamic_batching same_answer --skip forked].freeze
    TSAN = { "RUSTFLAGS" => "-Zsanitizer=thread", "CARGO_PROFILE_DEV_OPT_LEVEL" => "1",
             "CARGO_PROFILE_DEV_DEBUG" => "line-tables-only",
             "TSAN_OPTIONS" => "suppressions=#{File.join(Build::ROOT, "ext/engine/tests/tsan.supp")}" }.freeze

    module_function

    # @param tests [Array<String>, nil] names or parts of them
    def memcheck(tests)
      runner = "CARGO_TARGET_#{Rust.platform.upcase.tr("-", "_")}_RUNNER"
      test({ **Build.environment, runner => VALGRIND }, %w[test --release --lib --test suite], tests || MEMCHECK)
    end

    # @param tests [Array<String>, nil] names or parts of them
    def miri(tests)
      Rust.need_miri
      test({ "MIRIFLAGS" => MIRI_FLAGS, "CARGO_TARGET_DIR" => Rust.folder("miri") },
           %w[+nightly miri test --lib], (tests || MIRI) + NOT_IN_MIRI)
    end

    # @param tests [Array<String>, nil] names or parts of them
    def tsan(tests)
      Rust.need_source("tsan")
      # Optimized, or it would take hours; the standard library is built again, or its locks would not be seen.
      test({ **Rust::UNSTABLE, **TSAN, "CARGO_TARGET_DIR" => Rust.folder("tsan") },
           ["test", "-Zbuild-std", "--target", Rust.platform, "--lib", "--test", "suite"], tests || THREADS)
    end

    def test(environment, command, tests)
      packages = %w[base kernels formats engine].flat_map { |name| ["--package", "red-candle-#{name}"] }
      system(environment, "cargo", *command, "--locked", *packages, "--", *tests, chdir: Build::ROOT, exception: true)
    end
  end
end
