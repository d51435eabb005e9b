# frozen_string_literal: true

require "fileutils"
require "open3"
require "tmpdir"
require "yaml"

RSpec.describe "packaging" do
  let(:root) { ProjectFiles::ROOT }
  let(:specification) { Gem::Specification.load(File.join(root, "red-candle.gemspec")) }

  it "has one version for the gem and the Cargo workspace" do
    workspace = ProjectFiles.read("Cargo.toml")[/^version = "(.+)"/, 1]
    expect([Candle::VERSION, specification.version.to_s]).to all(eq(workspace))
  end

  it "tells readers which Rust a build needs" do
    wanted = ProjectFiles.read("Cargo.toml")[/^rust-version = "(.+)"/, 1]
    expect(ProjectFiles.read("README.md")).to include("Rust #{wanted} or newer")
  end

  it "loads by both names" do
    script = "print Candle::VERSION"
    %w[candle red-candle].each do |name|
      output, status = Open3.capture2e(RbConfig.ruby, "-I#{root}/lib", "-r#{name}", "-e", script)
      expect([output, status.success?]).to eq([Candle::VERSION, true])
    end
  end

  it "ships what a build needs, and neither build results nor tests" do
    files = specification.files
    expect(files).to include("Cargo.toml", "Cargo.lock", "ext/candle/Cargo.toml", "ext/candle/extconf.rb",
                             "ext/candle/src/lib.rs", "ext/candle/build.rs", "ext/candle/build_options.rb",
                             "ext/candle/cuda/extconf.rb", "ext/engine/Cargo.toml", "ext/engine/src/lib.rs",
                             "ext/base/src/lib.rs", "ext/kernels/Cargo.toml", "ext/formats/src/lib.rs",
                             "lib/candle.rb", "lib/red-candle.rb", "lib/candle/server/page.html",
                             "LICENSE", "README.md", "CHANGELOG.md")
    expect(files.grep(%r{\.(so|bundle|gem)\z|\A(spec|bin|tmp|pkg)/})).to be_empty
  end

  # A library that Ruby carries as a gem can't be required under Bundler unless a gemspec or Gemfile names it.
  it "names every library of Ruby that has become a gem, up to Ruby 4.0" do
    gems = %w[abbrev base64 benchmark bigdecimal cgi csv debug drb fiddle getoptlong irb logger matrix mutex_m
              net/ftp net/imap net/pop net/smtp nkf observer ostruct prime pstore racc rbs rdoc readline reline
              resolv-replace rexml rinda rss syslog win32ole]
    required = Dir[File.join(root, "{lib,exe,ext/candle}/**/*")].select { |path| File.file?(path) }.flat_map do |path|
      path.end_with?(".rb", "red-candle") ? File.read(path).scan(/^\s*require ["']([^"']+)["']/).flatten : []
    end
    needed = gems.select { |name| required.any? { |feature| feature == name || feature.start_with?("#{name}/") } }
    expect(needed).to contain_exactly("logger", "reline")
    expect(specification.runtime_dependencies.map(&:name)).to include(*needed)
  end

  it "ships what its documents name" do
    files = specification.files
    %w[README.md CHANGELOG.md CONTRIBUTING.md].each do |document|
      links = ProjectFiles.read(document).scan(%r{\]\(([\w./-]+)\)}).flatten
      missing = links.reject { |link| files.any? { |file| file == link || file.start_with?("#{link}/") } }
      expect(missing).to be_empty, "#{document}: #{missing}"
    end
  end

  it "gives notice of every crate that is built" do
    require_relative "../../rakelib/support/notices"
    notices = Tasks::Notices.new
    expect(specification.files).to include("THIRD_PARTY_NOTICES.md")
    expect(notices.noticed - notices.locked).to be_empty, "run rake notices"
    expect(notices.present - notices.noticed).to be_empty, "run rake notices"
  end

  it "compiles without yard and rubocop, and loads without warnings" do
    script = "module Kernel; alias plain require; def require(name) = name.match?(/yard|rubocop/) ? " \
             "raise(LoadError, name) : plain(name); end; load Gem.bin_path('rake', 'rake')"
    output, status = Open3.capture2e(RbConfig.ruby, "-e", script, "--", "-AT", "compile", chdir: root)
    expect([status.success?, output]).to match([true, /rake compile /])
    every = "%w[candle candle/server candle/cli candle/jobs candle/active_record].each { |name| require name }"
    output, = Open3.capture2e(RbConfig.ruby, "-w", "-I#{root}/lib", "-e", every, chdir: root)
    expect(output.lines.grep(%r{#{root}/(lib|ext)})).to be_empty
  end

  it "says what to do when an application has a Candle of its own" do
    script = "class Candle; end; require 'candle'"
    plain = { "RUBYOPT" => nil, "BUNDLER_SETUP" => nil }
    output, status = Open3.capture2e(plain, RbConfig.ruby, "-I#{root}/lib", "-e", script)
    expect(status).not_to be_success
    expect(output).to include("red-candle defines the module Candle, but Candle is a Class here already (-e:1)")
  end

  it "names libclang before a build that would fail without it" do
    script = "require './build_options'; BuildOptions.define_singleton_method(:libclang_folders) { ['/nowhere'] }; " \
             "BuildOptions.check_libclang"
    Dir.mktmpdir do |directory|
      FileUtils.mkdir_p(File.join(directory, "ext", "candle"))
      FileUtils.cp(File.join(root, "Cargo.toml"), directory)
      FileUtils.cp(File.join(root, "ext", "candle", "build_options.rb"), File.join(directory, "ext", "candle"))
      output, status = Open3.capture2e(RbConfig.ruby, "-e", script, chdir: File.join(directory, "ext", "candle"))
      expect([status.success?, output]).to match([false, /needs libclang.*libclang-dev.*LIBCLANG_PATH/m])
    end
    expect(ProjectFiles.read("README.md")).to include("libclang")
  end

  it "has examples that run from any directory" do
    Dir[File.join(root, "examples", "*.rb")].each do |path|
      expect(File.read(path)).not_to match(%r{["']spec/}), path
    end
  end

  it "mentions the version in the changelog" do
    expect(ProjectFiles.read("CHANGELOG.md")).to match(/^## #{Regexp.escape(Candle::VERSION)} - \d{4}-\d{2}-\d{2}$/)
  end

  describe "workflows" do
    let(:workflows) do
      %w[ci release].to_h { |name| [name, YAML.safe_load(ProjectFiles.read(".github/workflows/#{name}.yml"))] }
    end

    it "test on Ubuntu and macOS 14" do
      expect(workflows.dig("ci", "jobs", "test", "strategy", "matrix", "os")).to eq(%w[ubuntu-latest macos-14])
      commands = workflows.dig("ci", "jobs", "test", "steps").filter_map { |step| step["run"] }
      expect(commands).to include("bundle exec rake compile", "bash .ci/run", "bundle exec rake doc:examples")
    end

    it "release a gem for every platform of the README" do
      platforms = workflows.dig("release", "jobs", "native", "strategy", "matrix", "platform")
      expect(platforms).to contain_exactly("x86_64-linux", "aarch64-linux", "x86_64-linux-musl", "aarch64-linux-musl",
                                           "arm64-darwin")
    end

    it "build and try a gem for every Ruby from the oldest allowed to 4.0, and test the oldest and the newest" do
      rubies = %w[3.1 3.2 3.3 3.4 4.0]
      native = workflows.dig("release", "jobs", "native", "steps").find { |step| step["uses"]&.include?("cross-gem") }
      expect(native.dig("with", "ruby-versions").split(",")).to eq(rubies)
      # A list beside `include` would leave one platform: each entry of `include` overwrites the one before.
      %w[try try-musl].each do |job|
        matrix = workflows.dig("release", "jobs", job, "strategy", "matrix")
        expect(matrix).to match("target" => Array, "ruby" => rubies)
      end
      expect(workflows.dig("ci", "jobs", "test", "strategy", "matrix", "ruby")).to include(rubies.first, rubies.last)
      expect(specification.required_ruby_version.to_s).to eq(">= 3.1")
      expect(ProjectFiles.read("README.md")).to include("Ruby #{rubies.first} to #{rubies.last}")
    end

    it "give every step something to do, and every job a machine" do
      workflows.each_value do |workflow|
        workflow.fetch("jobs").each_value do |job|
          expect(job).to include("runs-on", "steps")
          expect(job["steps"]).to all(satisfy { |step| step.key?("run") ^ step.key?("uses") })
        end
      end
    end
  end

  it "builds for CUDA in a target directory of its own" do
    Dir.mktmpdir do |directory|
      FileUtils.cp_r(%w[Rakefile rakelib red-candle.gemspec].map { |name| File.join(root, name) }, directory)
      FileUtils.mkdir_p(%w[lib/candle ext/candle].map { |name| File.join(directory, name) })
      FileUtils.cp(File.join(root, "lib/candle/version.rb"), File.join(directory, "lib/candle"))
      File.write(File.join(directory, "cargo"), <<~SH, perm: 0o755)
        #!/bin/sh
        mkdir -p "$CARGO_TARGET_DIR/release" && echo "built for $*" > "$CARGO_TARGET_DIR/release/libcandle.so"
      SH
      environment = { "PATH" => "#{directory}:#{ENV.fetch("PATH")}", "CANDLE_FEATURES" => nil,
                      "CARGO_TARGET_DIR" => File.join(directory, "target") }
      output, status = Open3.capture2e(environment, "rake", "compile:cuda", chdir: directory)
      expect(status).to be_success, output
      expect(Dir.children(File.join(directory, "target"))).to eq(["cuda"])
      expect(File.read(File.join(directory, "lib/candle/cuda/candle.so"))).to match(/red-candle-ext --features cuda$/)
    end
  end

  describe "extconf.rb" do
    def configure(*arguments, script: "extconf.rb", environment: {})
      Dir.mktmpdir do |directory|
        clean = { "CARGO_TARGET_DIR" => nil, "CANDLE_FEATURES" => nil, "SOURCE_DATE_EPOCH" => nil }.merge(environment)
        output, status = Open3.capture2e(clean, RbConfig.ruby, File.join(root, "ext/candle", script), *arguments,
                                         chdir: directory)
        makefile = File.join(directory, "Makefile")
        [File.exist?(makefile) ? File.read(makefile) : "", output, status.success?]
      end
    end

    it "builds the release profile without features by default" do
      makefile, = configure
      expect(makefile).to match(/^RB_SYS_CARGO_PROFILE \?= release$/)
      expect(makefile).not_to include("--features")
    end

    it "takes features from the command line in every form, and from the environment" do
      [[["--", "--features", "cuda,mkl"]], [["--features=cuda,mkl"]], [["--enable-cuda", "--enable-mkl"]],
       [["--features", "mkl"], { "CANDLE_FEATURES" => "cuda" }]].each do |arguments, environment = {}|
        plain, output, passed = configure(*arguments, environment: environment)
        expect(passed).to be(true), output
        expect(plain).to match(/^RB_SYS_CARGO_FEATURES \?= mkl$/)
        expect(plain).to match(%r{^target_prefix = /candle$})

        cuda, output, passed = with_nvcc do |path|
          configure(*arguments, script: "cuda/extconf.rb", environment: environment.merge("PATH" => path))
        end
        expect(passed).to be(true), output
        expect(cuda).to match(/^RB_SYS_CARGO_FEATURES \?= cuda,mkl$/)
        expect(cuda).to match(%r{^target_prefix = /candle/cuda$})
        manifest = cuda[/^RB_SYS_CARGO_MANIFEST_DIR \?= (.+)$/, 1]
        expect(File.expand_path(manifest)).to eq(File.join(root, "ext/candle"))
      end
    end

    it "makes no CUDA build unasked, and says what one needs" do
      makefile, output, passed = configure(script: "cuda/extconf.rb")
      expect(passed).to be(true), output
      expect(makefile).not_to include("cargo")
      expect(specification.extensions).to eq(%w[ext/candle/extconf.rb ext/candle/cuda/extconf.rb])

      nowhere = { "PATH" => "/nonexistent", "CUDA_HOME" => nil, "CUDA_PATH" => nil, "CUDA_ROOT" => nil }
      _, output, passed = configure("--features", "cuda", script: "cuda/extconf.rb", environment: nowhere)
      expect([passed, output]).to match([false, /needs NVIDIA's CUDA toolkit, and no nvcc was found/])
    end

    # A PATH with something called nvcc on it.
    def with_nvcc
      Dir.mktmpdir do |directory|
        File.write(File.join(directory, "nvcc"), "#!/bin/sh\n", perm: 0o755)
        yield "#{directory}:#{ENV.fetch("PATH")}"
      end
    end

    it "names the known features when one is unknown" do
      _, output, passed = configure("--features", "cuba")
      expect(passed).to be(false)
      expect(output).to include('unknown feature "cuba"', "cuda, cudnn, mkl")
    end

    it "builds in CARGO_TARGET_DIR and then cleans nothing" do
      makefile, = configure(environment: { "CARGO_TARGET_DIR" => "/elsewhere", "SOURCE_DATE_EPOCH" => "0" })
      expect(makefile).to start_with("RB_SYS_CARGO_TARGET_DIR ?= /elsewhere\n")
      expect(makefile).to match(/^install: install-so$/)
    end

    it "optimizes across crates in precompiled gems only" do
      setting = /^export CARGO_PROFILE_RELEASE_LTO \?= thin$/
      expect(configure.first).not_to match(setting)
      expect(configure(environment: { "RUBY_TARGET" => "x86_64-linux" }).first).to match(setting)
      expect(ProjectFiles.read("Cargo.toml")).to match(/^lto = false$/)
    end

    it "compiles a family of models again by what was changed, but nothing for later in a gem" do
      setting = /^export CARGO_INCREMENTAL \?= 0$/
      expect(configure.first).not_to match(setting)
      expect(configure(environment: { "RUBY_TARGET" => "x86_64-linux" }).first).to match(setting)
      crates = ProjectFiles.read("Cargo.toml").scan(/^\[profile\.release\.package\.(\S+)\]\nincremental = true$/)
      expect(crates.flatten).to eq(%w[red-candle-engine red-candle-ext])
    end

    it "leaves one library behind when RubyGems has installed the gem, and keeps nothing for a next build" do
      Dir.mktmpdir do |directory|
        cargo = <<~SH
          #!/bin/sh
          [ "$CARGO_INCREMENTAL" = 0 ] || exit 1
          while [ "$1" != --target-dir ]; do shift; done
          mkdir -p "$2/release" && cd "$2/release" && echo a library | tee libcandle.so libcandle.dylib
        SH
        File.write(File.join(directory, "cargo"), cargo, perm: 0o755)
        output, status = install_source_gem(File.join(directory, "home"), "#{directory}:#{ENV.fetch("PATH")}")
        expect(status).to be_success, output
        libraries = Dir.glob(File.join(directory, "home/**/*.{so,bundle}"), File::FNM_DOTMATCH)
        places = libraries.map { |path| path[%r{red-candle-[^/]+/(.*)}, 1] }
        expect(places).to eq(["lib/candle/candle.#{RbConfig::CONFIG["DLEXT"]}"])
      end
    end

    def install_source_gem(home, path)
      bring_gems(home)
      package = File.join(home, "red-candle.gem")
      system("gem", "build", "--silent", "--force", "--output", package, "red-candle.gemspec",
             chdir: root, exception: true)
      environment = { "GEM_HOME" => home, "GEM_PATH" => home, "PATH" => path, "RUBYOPT" => nil, "RUBYLIB" => nil,
                      "CARGO_TARGET_DIR" => nil, "CANDLE_FEATURES" => nil, "BUNDLE_GEMFILE" => nil,
                      "BUNDLER_SETUP" => nil, "CARGO_INCREMENTAL" => nil, "RB_SYS_CARGO_TARGET_DIR" => nil,
                      "RB_SYS_GLOBAL_RUSTFLAGS" => nil }
      Open3.capture2e(environment, RbConfig.ruby, "-S", "gem", "install", "--local", "--no-document", package)
    end

    # What ours needs, from where this machine has it.
    def bring_gems(home)
      specification.runtime_dependencies.map(&:to_spec).each do |needed|
        { "gems" => needed.full_gem_path, "specifications" => needed.loaded_from }.each do |folder, path|
          FileUtils.mkdir_p(File.join(home, folder))
          FileUtils.cp_r(path, File.join(home, folder))
        end
      end
    end

    it "says how to get Rust when there is none, and when it is too old" do
      Dir.mktmpdir do |directory|
        _, output, passed = configure(environment: { "PATH" => directory })
        expect([output, passed]).to match([/needs Rust 1\.\d+ or newer, and none is on the PATH.*rustup/m, false])

        { "cargo" => "exit 0", "rustc" => 'echo "rustc 1.63.0"' }.each do |name, body|
          File.write(File.join(directory, name), "#!/bin/sh\n#{body}\n", perm: 0o755)
        end
        _, output, passed = configure(environment: { "PATH" => directory })
        expect([output, passed]).to match([/but rustc is 1\.63\.0.*rustup/m, false])
      end
    end
  end

  describe "bin/setup" do
    def source_line(files)
      Dir.mktmpdir do |directory|
        files.each do |name, content|
          path = File.join(directory, name)
          FileUtils.mkdir_p(File.dirname(path))
          File.write(path, content)
        end
        function = ProjectFiles.read("bin/setup")[/^source_line_for\(\) \{.*?^\}/m]
        output, status = Open3.capture2e("bash", "-euc", "#{function}\nsource_line_for bookworm trixie #{directory}")
        expect(status).to be_success, output
        output
      end
    end

    it "derives the next release's source from a deb822 file" do
      line = source_line("sources.list.d/debian.sources" => <<~SOURCES)
        # comment
        Types: deb deb-src
        URIs: http://mirror.example/debian
        Suites: bookworm bookworm-updates
        Components: main contrib
        Signed-By: /usr/share/keyrings/some.gpg

        Types: deb
        URIs: http://mirror.example/security
        Suites: bookworm-security
        Components: main
      SOURCES
      expect(line).to eq("deb [signed-by=/usr/share/keyrings/some.gpg] http://mirror.example/debian trixie main\n")
    end

    it "derives it from one-line entries, with and without options" do
      lines = source_line("sources.list" => <<~SOURCES)
        # deb http://mirror.example/commented bookworm main
        deb [arch=amd64 signed-by=/some.gpg] http://mirror.example/debian bookworm main contrib
        deb http://mirror.example/other bookworm main
        deb http://mirror.example/security bookworm-security main
        deb-src http://mirror.example/debian bookworm main
      SOURCES
      expect(lines.lines).to eq(["deb [arch=amd64 signed-by=/some.gpg] http://mirror.example/debian trixie main\n",
                                 "deb http://mirror.example/other trixie main\n"])
    end

    it "leaves a disabled source and a source without the main component alone" do
      expect(source_line("sources.list.d/a.sources" => <<~SOURCES)).to eq("")
        Enabled: no
        Types: deb
        URIs: http://mirror.example/debian
        Suites: bookworm
        Components: main

        Types: deb
        URIs: http://mirror.example/debian
        Suites: bookworm
        Components: contrib
      SOURCES
    end
  end
end
