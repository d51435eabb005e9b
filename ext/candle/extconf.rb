# frozen_string_literal: true

require "mkmf"

MINIMUM_RUST = File.read(File.expand_path("../../Cargo.toml", __dir__))[/^rust-version = "(.+)"/, 1]
FEATURES = %w[cuda cudnn mkl].freeze

# Stops the build with a message that RubyGems shows to the user.
def stop(message)
  abort "\nred-candle: #{message}\n\n"
end

# @return [String] what `rustc --version` calls itself, or nil without Rust
def rust_version
  return nil unless find_executable("cargo") && find_executable("rustc")

  `rustc --version`[/\d+\.\d+\.\d+/]
end

def check_rust
  version = rust_version
  how = "Install a current one with rustup (see the Rust project's \"Install\" page), open a new shell and try again."
  stop("building from source needs Rust #{MINIMUM_RUST} or newer, and none is on the PATH. #{how}") unless version
  return if Gem::Version.new(version) >= Gem::Version.new(MINIMUM_RUST)

  stop("building from source needs Rust #{MINIMUM_RUST} or newer, but rustc is #{version}. #{how}")
end

# Takes the feature options out of the arguments, since the Makefile generator
# hands what is left to cargo.
#
# @return [Array<String>] from `--features a,b`, `--features=a`, `--enable-a` and CANDLE_FEATURES
def take_features(arguments)
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

features = take_features(ARGV)
check_rust

begin
  require "rb_sys/mkmf"
rescue LoadError
  stop("building from source needs the rb_sys gem: gem install rb_sys")
end

target_directory = ENV.fetch("CARGO_TARGET_DIR", "")

create_rust_makefile("candle/candle") do |config|
  config.profile = :release
  config.features = features
  config.extra_cargo_args << "--locked" if config.rubygems_invoked?
  config.clean_after_install = false unless target_directory.empty?
end

unless target_directory.empty?
  makefile = File.read("Makefile")
  File.write("Makefile", "RB_SYS_CARGO_TARGET_DIR ?= #{File.expand_path(target_directory)}\n#{makefile}")
end
