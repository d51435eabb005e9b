# frozen_string_literal: true

require "open3"
require_relative "build"

module Tasks
  # The nightly Rust, which alone has the sanitizers and miri.
  module Nightly
    module_function

    # Ends the task unless there is one.
    #
    # @param task [String] who needs it
    # @param components [Array<String>] of rustup, which it must have
    def need(task, *components)
      return if installed?(components)

      with = components.map { |name| " --component #{name}" }.join
      abort "rake #{task} needs a nightly Rust: rustup toolchain install nightly#{with}"
    end

    # @return [String] what this machine is to Rust
    def platform
      @platform ||= Open3.capture2("rustc", "-vV").first[/^host: (.+)/, 1]
    end

    # @return [String] where Cargo builds for a task, beside the other builds
    def folder(task) = File.join(Build.target_directory, task)

    def installed?(components)
      _, version = Open3.capture2e("cargo", "+nightly", "--version")
      listed, = Open3.capture2e("rustup", "component", "list", "--installed", "--toolchain", "nightly")
      version.success? && components.all? { |name| listed.lines.any? { |line| line.start_with?(name) } }
    rescue Errno::ENOENT
      false
    end
  end
end
