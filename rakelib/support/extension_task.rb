# frozen_string_literal: true

require "rake/extensiontask"

module Tasks
  # rake-compiler's task for our layout: several crates in one workspace, features
  # from CANDLE_FEATURES, and precompiled gems without Rust sources.
  class ExtensionTask < Rake::ExtensionTask
    SOURCES = "../{{base,kernels,formats,engine,candle}/{Cargo.toml,build.rs,src/**/*.*},../Cargo.{toml,lock}}"
    SETTINGS = "tmp/build_settings"

    def init(name = nil, gem_spec = nil)
      super
      @lib_dir = "lib/candle"
      @source_pattern = SOURCES
      @cross_compile = ENV.key?("RUBY_TARGET")
      @cross_platform = [ENV.fetch("RUBY_TARGET", nil)].compact
      @no_native = @cross_compile
    end

    private

    def define_compile_tasks(for_platform = nil, ruby_version = RUBY_VERSION)
      super
      directory = "#{@tmp_dir}/#{for_platform || platform}/#{@name}/#{ruby_version}"
      Rake::FileTask.define_task("#{directory}/Makefile" => write_settings)
    end

    # A file that changes only when the settings baked into the Makefile do.
    def write_settings
      settings = "features=#{ENV.fetch("CANDLE_FEATURES", "")}\n"
      unless File.exist?(SETTINGS) && File.read(SETTINGS) == settings
        mkdir_p(File.dirname(SETTINGS), verbose: false)
        File.write(SETTINGS, settings)
      end
      SETTINGS
    end

    def define_native_tasks(for_platform = nil, ruby_version = RUBY_VERSION, callback = nil)
      strip = lambda do |spec|
        callback&.call(spec)
        spec.dependencies.reject! { |dependency| dependency.name == "rb_sys" }
        spec.files.reject! { |path| path.start_with?("ext/") || path.match?(/\ACargo\.(toml|lock)\z/) }
      end
      super(for_platform, ruby_version, strip)
    end
  end
end
