# frozen_string_literal: true

require_relative "build"
require_relative "tools"

module Tasks
  # Builds for another processor or system on Linux: Debian's Rust, whose standard library comes as source, and
  # zig as C compiler and linker. Nothing that is built so is shipped.
  class Cross
    DEBIAN_PACKAGES = %w[rustc-web cargo-web rust-web-src python3-venv libclang-dev clang].freeze
    PYTHON_PACKAGES = %w[ziglang cargo-zigbuild].freeze
    BUILD_STANDARD_LIBRARY = "-Zbuild-std=std,panic_unwind"
    VENV = File.join(Build.cache_directory, "zig")

    # @return [String] where cargo builds
    attr_reader :target_directory

    # @param target [String] in Rust's words
    # @param folder [String] where what is built is kept
    def initialize(target, folder)
      @target = target
      @target_directory = File.join(folder, "target")
    end

    # @param packages [Array<String>] further packages of Debian's that are needed
    # @raise [Tools::Missing] when a tool is missing and may not be installed
    def prepare(packages = [])
      install_rust
      install_debian_packages(packages)
      install_python_packages
    end

    # Runs a command of cargo's and says how long it took; ends the process where it fails.
    #
    # @param settings [Hash{String => String}] what cargo is to find in its environment besides
    def cargo(command, *arguments, settings: {})
      words = [File.join(VENV, "bin/cargo-zigbuild"), command, "--locked", BUILD_STANDARD_LIBRARY,
               "--target", @target, "--quiet", *arguments]
      started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      success = system(environment.merge(settings), *words, chdir: Build::ROOT)
      seconds = Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
      puts format("%<command>s for #{@target}: %<seconds>.0f s", command:, seconds:)
      abort "the #{command} for #{@target} failed" unless success
    end

    # @return [String] where zig and its headers lie
    def zig_folder
      Dir[File.join(VENV, "lib/python*/site-packages/ziglang")].first ||
        raise(Tools::Missing, "zig is not in #{VENV}")
    end

    private

    def environment
      { "PATH" => "/usr/bin:#{ENV.fetch("PATH")}", "RUSTUP_TOOLCHAIN" => nil, "RUSTFLAGS" => nil,
        "CARGO" => "/usr/bin/cargo", "RUSTC" => "/usr/bin/rustc", "RUSTC_BOOTSTRAP" => "1",
        "CARGO_TARGET_DIR" => target_directory, "CARGO_ZIGBUILD_ZIG_PATH" => File.join(zig_folder, "zig"),
        "CARGO_INCREMENTAL" => "0" }
    end

    def install_rust
      return if web_rust?
      return if may_install? && Tools.install(DEBIAN_PACKAGES) && web_rust?

      raise Tools::Missing,
            "needs Debian's packages #{DEBIAN_PACKAGES.join(" ")} with Rust #{oldest_rust} or newer"
    end

    # The standard library's source has to be that of the compiler, and both new enough.
    def web_rust?
      versions = Tools.installed(DEBIAN_PACKAGES.first(3))
      versions&.all? { |version| Gem::Version.new(version[/\A[\d.]+/]) >= oldest_rust }
    end

    def oldest_rust
      Gem::Version.new(File.read(File.join(Build::ROOT, "Cargo.toml"))[/^rust-version = "(.+)"/, 1])
    end

    def install_debian_packages(packages)
      return if packages.empty? || Tools.installed(packages)
      return if may_install? && Tools.install(packages)

      raise Tools::Missing, "needs Debian's packages #{packages.join(" ")}"
    end

    def install_python_packages
      return if Dir[File.join(VENV, "{bin/cargo-zigbuild,lib/*/*/ziglang}")].size == 2

      installed = may_install? && Tools.quiet(["python3", "-m", "venv", VENV]) &&
                  Tools.quiet([File.join(VENV, "bin/pip"), "install", "--quiet", *PYTHON_PACKAGES])
      return if installed

      raise Tools::Missing, "needs the Python packages #{PYTHON_PACKAGES.join(" ")} in the virtualenv #{VENV}"
    end

    # On a person's machine nothing is installed unasked.
    def may_install?
      Build.continuous_integration?
    end
  end
end
