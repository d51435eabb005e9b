# frozen_string_literal: true

require "rbconfig"

module Tasks
  # Where and with which settings Cargo builds in a checkout, so that all of
  # its commands share one set of build results.
  module Build
    ROOT = File.expand_path("../..", __dir__)

    module_function

    # @return [String] Cargo's target directory
    def target_directory
      given = ENV.fetch("CARGO_TARGET_DIR", "")
      given.empty? ? File.join(cache_directory, "target") : File.expand_path(given, ROOT)
    end

    # A build of the extension with other features overwrites the library that `rake compile` made, which is then
    # built again, and it holds the lock of the target directory for as long as it runs.
    #
    # @param name [String] what the build is for
    # @return [Hash{String => String}] environment of a build that has a target directory of its own
    def environment_of(name)
      directory = File.join(target_directory, name)
      { "CARGO_TARGET_DIR" => directory, "RB_SYS_CARGO_TARGET_DIR" => directory }
    end

    # @return [String] the user's cache directory for this project
    def cache_directory
      base = ENV.fetch("XDG_CACHE_HOME", "")
      base = File.join(Dir.home, darwin? ? "Library/Caches" : ".cache") if base.empty?
      File.join(base, "red-candle")
    end

    # @return [Array<String>] from CANDLE_FEATURES, as extconf.rb reads it
    def features
      ENV.fetch("CANDLE_FEATURES", "").split(/[\s,]+/).reject(&:empty?)
    end

    # @return [Boolean]
    def darwin?
      RbConfig::CONFIG["host_os"].include?("darwin")
    end

    # @return [Boolean] whether nobody is there to be asked
    def continuous_integration?
      !ENV.fetch("CI", "").empty?
    end

    # The extension's Makefile would add a compiler flag of its own, with which
    # Cargo builds every dependency a second time beside those of `cargo test`.
    #
    # @return [Hash{String => String}] environment of every build command
    def environment
      { "CARGO_TARGET_DIR" => target_directory,
        "RB_SYS_CARGO_TARGET_DIR" => target_directory,
        "RB_SYS_CARGO_PROFILE" => "release",
        "RB_SYS_GLOBAL_RUSTFLAGS" => "" }
    end

    # The Makefile exports these, and the rb-sys crate is built again whenever
    # they change: a plain `cargo` command on the extension must set them too,
    # with the places that rake-compiler puts in for the system's own, and with
    # `$&` gone, since make takes it for a variable.
    #
    # @return [Hash{String => String}]
    def ruby_environment
      library = File.join(ROOT, "lib", "candle")
      values = RbConfig::CONFIG.merge("sitearchdir" => library, "sitelibdir" => library, "topdir" => ".")
      values.to_h { |key, value| ["RBCONFIG_#{key}", value.gsub("\n", '\n').gsub("$&", "").strip] }
    end

    # Puts {environment} into this process, for the commands it starts.
    def export
      environment.each { |name, value| ENV[name] ||= value }
    end
  end
end
