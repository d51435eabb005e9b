# frozen_string_literal: true

require "fileutils"
require "open3"
require "rbconfig"
require_relative "../build"
require_relative "../cross"
require_relative "../tools"
require_relative "mach_o"
require_relative "macos_symbols"

module Tasks
  module Metal
    # Checks and links the gem for macOS on Linux, with stub frameworks instead of Apple's SDK.
    class Darwin
      TARGET = "aarch64-apple-darwin"
      FOLDER = File.join(Build.cache_directory, "darwin")
      STUBS = File.join(FOLDER, "frameworks")
      RUBY_HEADERS = File.join(FOLDER, "ruby")

      def initialize
        @cross = Cross.new(TARGET, FOLDER)
      end

      # @raise [Tools::Missing] when a tool is missing and may not be installed
      def prepare
        @cross.prepare
        write_stubs
        write_ruby_headers
      end

      # Type-checks every crate of the workspace.
      def check
        @cross.cargo("check", "--workspace", settings:)
      end

      # Links the extension and looks up every symbol it imports.
      #
      # @return [Boolean] whether macOS and Ruby provide them all
      def link
        @cross.cargo("zigbuild", "--package", "red-candle-ext", settings:)
        bundle = MachO.new(File.join(@cross.target_directory, TARGET, "debug/libcandle.dylib"))
        unknown = []
        bundle.imports.group_by(&:library).sort.each do |library, imports|
          missing = imports.map(&:name).reject { |name| MacosSymbols.provided?(library, name, @cross.zig_folder) }
          puts "  #{library}: #{imports.size} symbols, #{missing.size} unknown"
          unknown.concat(missing)
        end
        unknown.each { |name| puts "  unknown: #{name}" }
        puts "  exports #{bundle.exports.grep(/\A_Init_/).join(", ")}"
        unknown.empty? && bundle.exports.include?("_Init_candle")
      end

      private

      def settings
        flags = ["-F#{STUBS}/System/Library/Frameworks", "-L#{STUBS}/usr/lib", "-Wl,-undefined,dynamic_lookup"]
        # Debian's Rust has no tool to strip Mach-O files with.
        { "CARGO_PROFILE_DEV_DEBUG" => "0", "CARGO_PROFILE_DEV_STRIP" => "false",
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
        resources, = Open3.capture2("clang++", "-print-resource-dir")
        [File.join(resources.strip, "include"), File.join(@cross.zig_folder, "lib/libc/include/any-darwin-any")]
      end

      def write_stubs
        MacosSymbols::LIBRARIES.each do |library|
          path = File.join(STUBS, library.stub)
          FileUtils.mkdir_p(File.dirname(path))
          File.write(path, library.text_stub)
        end
      end

      # This machine's config.h, without the headers that macOS does not have.
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
