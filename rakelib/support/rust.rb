# frozen_string_literal: true

require "open3"
require_relative "build"

module Tasks
  # What of Rust the tasks need that look for errors in memory and between threads.
  module Rust
    # Lets a stable Rust take the options of a nightly one: the sanitizers come with every Rust.
    UNSTABLE = { "RUSTC_BOOTSTRAP" => "1" }.freeze

    module_function

    # @return [String] what this machine is to Rust
    def platform
      @platform ||= Open3.capture2("rustc", "-vV").first[/^host: (.+)/, 1]
    end

    # @return [String] where Cargo builds for a task, beside the other builds
    def folder(task) = File.join(Build.target_directory, task)

    # Ends the task unless the source of the standard library is there.
    #
    # @param task [String] who needs it
    def need_source(task)
      sysroot, = Open3.capture2("rustc", "--print", "sysroot")
      return if File.exist?(File.join(sysroot.chomp, "lib/rustlib/src/rust/library/Cargo.lock"))

      abort "rake #{task} needs the source of Rust's standard library: rustup component add rust-src"
    end

    # Ends the task unless there is a nightly Rust with miri, which no stable one has.
    def need_miri
      _, status = Open3.capture2e("cargo", "+nightly", "miri", "--version")
      return if status.success?

      abort "rake miri needs miri, which only a nightly Rust has, and did not run: " \
            "rustup toolchain install nightly --component miri --component rust-src"
    end
  end
end
