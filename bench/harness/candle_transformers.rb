# frozen_string_literal: true

require_relative "../../rakelib/support/build"

module Bench
  # The peer written in Rust: candle-transformers, in a program of our own workspace.
  module CandleTransformers
    NAME = "candle-transformers"
    EXAMPLE = "candle_transformers_worker"

    module_function

    # @return [Array<String>] what builds it; a build that is up to date takes a moment
    def build_command
      ["cargo", "build", "--release", "--locked", "--package", "red-candle-engine", "--example", EXAMPLE]
    end

    # @return [String] the program
    def program
      File.join(Tasks::Build.target_directory, "release", "examples", EXAMPLE)
    end

    # @return [String] the program, built from today's sources
    def prepare
      system(Tasks::Build.environment, *build_command, chdir: Tasks::Build::ROOT, exception: true)
      program
    end
  end
end
