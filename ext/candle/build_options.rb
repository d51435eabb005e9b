# frozen_string_literal: true

require "mkmf"

# What both builds of the extension share: the options of `gem install`, and the
# checks that end a hopeless build with words that RubyGems shows to the user.
module BuildOptions
  MINIMUM_RUST = File.read(File.expand_path("../../Cargo.toml", __dir__))[/^rust-version = "(.+)"/, 1]
  CUDA_FEATURES = %w[cuda cudnn].freeze
  FEATURES = [*CUDA_FEATURES, "mkl"].freeze

  module_function

  def stop(message)
    abort "\nred-candle: #{message}\n\n"
  end

  # Takes the feature options out of the arguments, since the Makefile generator
  # hands what is left to cargo.
  #
  # @return [Array<String>] from `--features a,b`, `--features=a`, `--enable-a` and CANDLE_FEATURES
  def take_features(arguments = ARGV)
    given = ENV.fetch("CANDLE_FEATURES", "").split(/[\s,]+/)
    until arguments.empty?
      case argument = arguments.shift
      when "--" then next
      when "--features" then given.concat(arguments.shift.to_s.split(/[\s,]+/))
      when /\A--features=(.*)/ then given.concat(Regexp.last_match(1).split(/[\s,]+/))
      when /\A--enable-(.*)/ then given << Regexp.last_match(1)
      else stop("unknown build option #{argument}. Known: --features #{FEATURES.join(",")} or --enable-FEATURE.")
      end
    end
    given.reject(&:empty?).uniq.each do |feature|
      stop("unknown feature #{feature.inspect}. Known: #{FEATURES.join(", ")}.") unless FEATURES.include?(feature)
    end
  end

  # Writes the Makefile of one build.
  #
  # @param feature [String] what Ruby will `require`
  # @param crate [String] where Cargo.toml lies, seen from the extconf.rb in use
  def write_makefile(feature, cargo_features, crate: ".")
    check_rust
    check_libclang
    require_rb_sys
    target_directory = ENV.fetch("CARGO_TARGET_DIR", "")
    create_rust_makefile(feature) do |config|
      config.ext_dir = crate
      config.profile = :release
      config.features = cargo_features
      config.extra_cargo_args << "--locked" if config.rubygems_invoked?
      config.extra_rustflags.concat(release_flags) if config.rubygems_invoked? || ENV.key?("RUBY_TARGET")
      config.rubygems_clean_dirs << "$(DLLIB)"
      config.clean_after_install = false unless target_directory.empty?
      @installs_gem = config.rubygems_invoked? && !ENV.key?("RUBY_TARGET")
    end
    rewrite_makefile do |makefile|
      makefile = install_into_the_gem(makefile) if @installs_gem
      build_in(target_directory, compiled_for_gems(makefile))
    end
  end

  def build_in(target_directory, makefile)
    return makefile if target_directory.empty?

    "RB_SYS_CARGO_TARGET_DIR ?= #{File.expand_path(target_directory)}\n#{makefile}"
  end

  def rewrite_makefile
    File.write("Makefile", yield(File.read("Makefile")))
  end

  # RubyGems would copy what a Makefile installs twice: into the gem and into its directory of extensions.
  def install_into_the_gem(makefile)
    library = File.expand_path("../../lib", __dir__)
    makefile.sub(/^RUBYARCHDIR = .*$/) { "RUBYARCHDIR = #{library}$(target_prefix)" }
  end

  # What the release profile keeps for the next build of a checkout serves no gem. A precompiled gem is built once for
  # many users, who would wait for optimization across crates in a build of their own.
  def compiled_for_gems(makefile)
    precompiled = ENV.key?("RUBY_TARGET")
    settings = { "CARGO_INCREMENTAL" => (0 if @installs_gem || precompiled),
                 "CARGO_PROFILE_RELEASE_LTO" => ("thin" if precompiled) }
    settings.compact.map { |name, value| "export #{name} ?= #{value}\n" }.join + makefile
  end

  # Writes a Makefile that makes nothing.
  def write_empty_makefile
    File.write("Makefile", dummy_makefile($srcdir).join("\n")) # rubocop:disable Style/GlobalVars
  end

  def check_cuda
    stop("CUDA does not exist on macOS; Metal is part of every build there.") if RUBY_PLATFORM.include?("darwin")
    homes = ENV.values_at("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT").compact << "/usr/local/cuda"
    return if find_executable("nvcc") || homes.any? { |home| File.exist?(File.join(home, "bin", "nvcc")) }

    stop("the cuda feature needs NVIDIA's CUDA toolkit, and no nvcc was found. Install the toolkit, or set CUDA_HOME.")
  end

  def check_rust
    version = rust_version
    how = "Install a current one with rustup (see the Rust project's \"Install\" page), open a new shell and try again."
    stop("building from source needs Rust #{MINIMUM_RUST} or newer, and none is on the PATH. #{how}") unless version
    return if Gem::Version.new(version) >= Gem::Version.new(MINIMUM_RUST)

    stop("building from source needs Rust #{MINIMUM_RUST} or newer, but rustc is #{version}. #{how}")
  end

  # Ruby's headers are read by libclang.
  def check_libclang
    return if libclang_folders.any? { |folder| Dir.glob(File.join(folder, "libclang{,-*,.*}{so,dylib}*")).any? }

    stop("building from source needs libclang, which reads Ruby's headers, and none was found. Install it (Debian, " \
         "Ubuntu: libclang-dev, Fedora: clang-devel, Alpine: clang-dev, macOS: xcode-select --install), or set " \
         "LIBCLANG_PATH to the folder that holds it.")
  end

  # @return [Array<String>] where libclang is looked for
  def libclang_folders
    llvm = find_executable("llvm-config") ? [`llvm-config --libdir`.strip] : []
    [ENV.fetch("LIBCLANG_PATH", nil), *llvm, "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/lib/llvm-*/lib",
     "/usr/lib/llvm*/lib", "/usr/lib/*-linux-gnu", "/opt/homebrew/opt/llvm/lib", "/usr/local/opt/llvm/lib",
     "/Library/Developer/CommandLineTools/usr/lib",
     "/Applications/Xcode.app/Contents/Developer/Toolchains/XcodeDefault.xctoolchain/usr/lib"].compact.reject(&:empty?)
  end

  # Installed libraries carry no symbols that only debuggers read, and panics don't say where the gem was built.
  #
  # @return [Array<String>]
  def release_flags
    cargo = ENV.fetch("CARGO_HOME") { File.join(Dir.home, ".cargo") }
    { File.expand_path("../..", __dir__) => "red-candle", cargo => "cargo" }
      .map { |from, to| "--remap-path-prefix=#{from}=#{to}" }.push("-Cstrip=symbols")
  end

  # @return [String, nil] what `rustc --version` calls itself, nil without Rust
  def rust_version
    return nil unless find_executable("cargo") && find_executable("rustc")

    `rustc --version`[/\d+\.\d+\.\d+/]
  end

  def require_rb_sys
    require "rb_sys/mkmf"
  rescue LoadError
    stop("building from source needs the rb_sys gem: gem install rb_sys")
  end
end
