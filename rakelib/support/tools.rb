# frozen_string_literal: true

require "open3"

module Tasks
  # Finds the programs these checks need, and installs Debian's packages of those that are missing where
  # that takes no question: as root, on a machine that has apt-get.
  module Tools
    # The first with arithmetic on bfloat.
    OLDEST_CLANG = 17
    CLANG_VERSIONS = 22.downto(OLDEST_CLANG)

    Missing = Class.new(StandardError)

    module_function

    # @return [String] a clang++ that can compile Metal's kernels; SOFTMETAL_CLANG names another
    def clang
      given = ENV.fetch("SOFTMETAL_CLANG", "")
      return given unless given.empty?

      find_clang || begin
        # What Debian calls clang may be older.
        install(%w[clang]) unless find("clang++")
        find_clang || (install(%w[clang-19]) && find_clang)
      end || raise(Missing, "needs clang++ #{OLDEST_CLANG} or newer: install the package clang-19 or a newer one")
    end

    # @return [String, nil]
    def find_clang
      ["clang++", *CLANG_VERSIONS.map { |version| "clang++-#{version}" }].find do |name|
        version = find(name) && Open3.capture2e(name, "--version").first[/clang version (\d+)/, 1]
        version.to_i >= OLDEST_CLANG
      end
    end

    # @return [String, nil] where a program lies on the PATH
    def find(name)
      ENV.fetch("PATH").split(File::PATH_SEPARATOR).map { |folder| File.join(folder, name) }
         .find { |path| File.executable?(path) && File.file?(path) }
    end

    # @return [Array<String>, nil] the packages' versions; nil when one is not installed
    def installed(packages)
      output, status = Open3.capture2e("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}\n", *packages)
      rows = output.lines.map(&:split)
      rows.map(&:last) if status.success? && rows.all? { |state, _| state == "installed" }
    rescue Errno::ENOENT
      nil
    end

    # @return [Boolean] whether the packages are there now
    def install(packages)
      return false unless Process.uid.zero? && find("apt-get")

      warn "installing Debian packages: #{packages.join(" ")}"
      quiet(%w[apt-get update])
      quiet(["apt-get", "install", "-y", "--no-install-recommends", *packages])
    end

    def quiet(command)
      system({ "DEBIAN_FRONTEND" => "noninteractive" }, *command, in: File::NULL, out: File::NULL, err: File::NULL)
    end
  end
end
