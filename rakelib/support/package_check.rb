# frozen_string_literal: true

require "fileutils"
require "open3"
require "tmpdir"
require_relative "build"

module Tasks
  # Checks that a precompiled gem works on a machine that has only Ruby.
  class PackageCheck
    SCRIPT = <<~RUBY
      require "candle"
      native = $LOADED_FEATURES.grep(%r{/candle\\.(so|bundle)\\z})
      abort "native library from elsewhere: \#{native}" unless native.all? { |path| path.start_with?(Gem.dir) } && native.one?
      abort "wrong version \#{Candle::VERSION}" unless Candle::VERSION == ARGV.fetch(0)
      sum = (Candle::Tensor.new([1.0, 2.0]) + 1).to_a
      abort "wrong sum \#{sum}" unless sum == [2.0, 3.0]
    RUBY

    def initialize(specification)
      @specification = specification
    end

    def run
      check_contents
      check_source
      Dir.mktmpdir do |home|
        @home = home
        bring(*Gem::Package.new(package).spec.runtime_dependencies)
        ruby(gem_command, "install", "--local", "--no-document", package)
        ruby("-e", SCRIPT, @specification.version.to_s)
        ruby(File.join(@home, "bin", "red-candle"), "doctor")
      end
      puts "#{File.basename(package)} (#{File.size(package) / 1_000_000} MB) installs and runs without Rust"
    end

    private

    # @return [String] the newest precompiled gem in pkg/
    def package
      pattern = File.join(Build::ROOT, "pkg", "#{@specification.name}-#{@specification.version}-*.gem")
      Dir[pattern].max_by { |path| File.mtime(path) } || abort("no precompiled gem matches #{pattern}")
    end

    def check_contents
      specification = Gem::Package.new(package).spec
      sources = specification.files.grep(/\.rs\z|Cargo|extconf/)
      abort "#{package} contains sources: #{sources}" if sources.any?
      abort "#{package} builds at installation: #{specification.extensions}" if specification.extensions.any?
      needed = specification.runtime_dependencies.map(&:name)
      abort "#{package} needs rb_sys, which only a build does" if needed.include?("rb_sys")
    end

    # Cargo must find every crate and file that the manifests name in the source gem.
    def check_source
      Dir.mktmpdir do |directory|
        Gem::Package.new(File.join(Build::ROOT, "pkg", @specification.file_name)).extract_files(directory)
        output, status = Open3.capture2e("cargo", "metadata", "--locked", "--no-deps", "--format-version", "1",
                                         chdir: directory)
        abort "the source gem does not build: #{output}" unless status.success?
      end
    end

    # Puts the gems that ours needs into the new home, from where this machine has them.
    def bring(*dependencies)
      dependencies.map(&:to_spec).each do |specification|
        { "gems" => specification.full_gem_path, "specifications" => specification.loaded_from }.each do |folder, path|
          FileUtils.mkdir_p(File.join(@home, folder))
          FileUtils.cp_r(path, File.join(@home, folder))
        end
      end
    end

    def gem_command
      File.join(RbConfig::CONFIG["bindir"], "gem")
    end

    # Runs Ruby with nothing inherited but the temporary home.
    def ruby(*arguments)
      environment = { "HOME" => @home, "GEM_HOME" => @home, "GEM_PATH" => @home, "PATH" => File.join(@home, "bin") }
      output, status = Open3.capture2e(environment, RbConfig.ruby, *arguments, unsetenv_others: true, chdir: @home)
      abort "#{arguments.first} failed:\n#{output}" unless status.success?
    end
  end
end
