# frozen_string_literal: true

require "fileutils"
require "open3"
require "rbconfig"
require_relative "../build"
require_relative "mach_o"
require_relative "macos_symbols"
require_relative "tools"

module Tasks
  module Metal
    # Checks and links the gem for macOS on Linux: Debian's Rust, whose standard library comes as source, zig as
    # C compiler and linker, stub frameworks instead of Apple's SDK. Nothing that is built here is shipped.
    class Darwin
      TARGET = "aarch64-apple-darwin"
      DEBIAN_PACKAGES = %w[rustc-web cargo-web rust-web-src python3-venv libclang-dev clang].freeze
      PYTHON_PACKAGES = %w[ziglang cargo-zigbuild].freeze
      BUILD_STANDARD_LIBRARY = "-Zbuild-std=std,panic_unwind"
      FOLDER = File.join(Build.cache_directory, "darwin")
      VENV = File.join(FOLDER, "venv")
      STUBS = File.join(FOLDER, "frameworks")
      RUBY_HEADERS = File.join(FOLDER, "ruby")

      # @raise [Tools::Missing] when a tool is missing and may not be installed
      def prepare
        install_debian_packages
        install_python_packages
        write_stubs
        write_ruby_headers
      end

      # Type-checks every crate of the workspace.
      def check
        cargo("check", "--workspace")
      end

      # Links the extension and looks up every symbol it imports.
      #
      # @return [Boolean] whether macOS and Ruby provide them all
      def link
        cargo("zigbuild", "--package", "red-candle-ext")
        bundle = MachO.new(File.join(target_directory, TARGET, "debug/libcandle.dylib"))
        unknown = []
        bundle.imports.group_by(&:library).sort.each do |library, imports|
          missing = imports.map(&:name).reject { |name| MacosSymbols.provided?(library, name, zig_folder) }
          puts "  #{library}: #{imports.size} symbols, #{missing.size} unknown"
          unknown.concat(missing)
        end
        unknown.each { |name| puts "  unknown: #{name}" }
        puts "  exports #{bundle.exports.grep(/\A_Init_/).join(", ")}"
        unknown.empty? && bundle.exports.include?("_Init_candle")
      end

      private

      def target_directory
        File.join(FOLDER, "target")
      end

      def cargo(command, *arguments)
        words = [File.join(VENV, "bin/cargo-zigbuild"), command, "--locked", BUILD_STANDARD_LIBRARY,
                 "--target", TARGET, "--quiet", *arguments]
        started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        success = system(environment, *words, chdir: Build::ROOT)
        seconds = Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
        puts format("%<command>s for #{TARGET}: %<seconds>.0f s", command:, seconds:)
        abort "the #{command} for #{TARGET} failed" unless success
      end

      def environment
        flags = ["-F#{STUBS}/System/Library/Frameworks", "-L#{STUBS}/usr/lib", "-Wl,-undefined,dynamic_lookup"]
        { "PATH" => "/usr/bin:#{ENV.fetch("PATH")}", "RUSTUP_TOOLCHAIN" => nil, "RUSTFLAGS" => nil,
          "CARGO" => "/usr/bin/cargo", "RUSTC" => "/usr/bin/rustc", "RUSTC_BOOTSTRAP" => "1",
          "CARGO_TARGET_DIR" => target_directory, "CARGO_ZIGBUILD_ZIG_PATH" => File.join(zig_folder, "zig"),
          # Debian's Rust has no tool to strip Mach-O files with.
          "CARGO_PROFILE_DEV_DEBUG" => "0", "CARGO_PROFILE_DEV_STRIP" => "false", "CARGO_INCREMENTAL" => "0",
          "CARGO_TARGET_AARCH64_APPLE_DARWIN_RUSTFLAGS" => flags.map { |flag| "-Clink-arg=#{flag}" }.join(" "),
          "BINDGEN_EXTRA_CLANG_ARGS_aarch64_apple_darwin" => bindgen_arguments.join(" ") }.merge(ruby_environment)
      end

      # rb-sys asks no Ruby when it is told to cross-compile: this is all it learns.
      def ruby_environment
        api = RbConfig::CONFIG.slice("MAJOR", "MINOR", "TEENY", "PATCHLEVEL", "RUBY_PROGRAM_VERSION", "ruby_version",
                                     "RUBY_API_VERSION", "rubyhdrdir")
        api.merge("CROSS_COMPILING" => "yes", "platform" => "arm64-darwin22", "arch" => "arm64-darwin22",
                  "ruby_install_name" => "ruby", "RUBY_SO_NAME" => "ruby.#{api["MAJOR"]}.#{api["MINOR"]}",
                  "rubyarchhdrdir" => RUBY_HEADERS).transform_keys { |key| "RBCONFIG_#{key}" }
      end

      def bindgen_arguments
        ["-nostdinc", *header_folders.flat_map { |folder| ["-isystem", folder] }]
      end

      # The compiler's own headers, then macOS's.
      def header_folders
        resources, = Open3.capture2(Tools.clang, "-print-resource-dir")
        [File.join(resources.strip, "include"), File.join(zig_folder, "lib/libc/include/any-darwin-any")]
      end

      def zig_folder
        Dir[File.join(VENV, "lib/python*/site-packages/ziglang")].first ||
          raise(Tools::Missing, "zig is not in #{VENV}")
      end

      def install_debian_packages
        return if web_rust?
        return if may_install? && Tools.install(DEBIAN_PACKAGES) && web_rust?

        raise Tools::Missing,
              "needs Debian's packages #{DEBIAN_PACKAGES.join(" ")} with Rust #{oldest_rust} or newer"
      end

      # The standard library's source has to be that of the compiler, and both new enough.
      def web_rust?
        output, status = Open3.capture2e("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}\n",
                                         *DEBIAN_PACKAGES.first(3))
        status.success? && output.lines.all? do |line|
          state, version = line.split
          state == "installed" && Gem::Version.new(version[/\A[\d.]+/]) >= oldest_rust
        end
      rescue Errno::ENOENT
        false
      end

      def oldest_rust
        Gem::Version.new(File.read(File.join(Build::ROOT, "Cargo.toml"))[/^rust-version = "(.+)"/, 1])
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
        !ENV.fetch("CI", "").empty?
      end

      def write_stubs
        MacosSymbols::LIBRARIES.each do |library|
          path = File.join(STUBS, library.stub)
          FileUtils.mkdir_p(File.dirname(path))
          File.write(path, library.text_stub)
        end
      end

      # This machine's config.h, without the headers that macOS lacks.
      def write_ruby_headers
        FileUtils.mkdir_p(File.join(RUBY_HEADERS, "ruby"))
        lines = File.readlines(File.join(RbConfig::CONFIG["rubyarchhdrdir"], "ruby/config.h"))
        folders = header_folders
        kept = lines.reject do |line|
          header = line[/#define HAVE_(\w+)_H 1/, 1]&.downcase
          header && Dir[*folders.flat_map { |f| ["#{f}/#{header}.h", "#{f}/#{header.sub("_", "/")}.h"] }].empty?
        end
        File.write(File.join(RUBY_HEADERS, "ruby/config.h"), kept.join)
      end
    end
  end
end
