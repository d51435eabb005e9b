# frozen_string_literal: true

require "json"

module Candle
  # The models of a project, each with its commit and with the size and SHA-256 of every file that a load may read, as
  # `red-candle lock` writes them down. Once {Candle.models_lock=} names such a file, every load takes exactly those
  # bytes or fails.
  #
  # @example
  #   require "tmpdir"
  #   Dir.mktmpdir do |directory|
  #     path = File.join(directory, "models.lock")
  #     lock = Candle::ModelsLock.read(path)
  #     lock.add("spec/fixtures/tiny/bert-sentence")
  #     lock.write
  #     Candle.models_lock = path
  #     Candle::EmbeddingModel.from_pretrained("spec/fixtures/tiny/bert-sentence").dimension # => 32
  #     Candle.models_lock = nil
  #   end
  class ModelsLock
    # Where the command line writes and reads it.
    DEFAULT_PATH = "models.lock"

    FORM = 1
    private_constant :FORM

    class << self
      # @param path [String, Pathname] a file that may not exist yet
      # @return [ModelsLock]
      # @raise [CorruptModelError] when it is something else
      def read(path = DEFAULT_PATH)
        path = File.expand_path(path)
        return new(path, []) unless File.file?(path)

        document = JSON.parse(File.read(path))
        unless document.is_a?(Hash) && document["red_candle_models"] == FORM && document["models"].is_a?(Array)
          raise CorruptModelError, "#{path} is not a list of locked models of form #{FORM}: delete it and lock again"
        end

        new(path, document["models"])
      rescue JSON::ParserError
        raise CorruptModelError, "#{path} is not valid JSON: delete it and lock again"
      end

      # Has loads obey a file, or none.
      #
      # @api private
      def obey(path)
        _obey(path)
      end

      # @api private
      # @return [String] of a file's bytes, in hexadecimal
      def sha256(path)
        _sha256(path)
      end

      # @api private
      # @return [Array<String>] the paths of a locked model's files, fetched and compared
      def fetch(lock, source)
        _fetch(lock, source, { packs: ModelGems.packs([source]) })
      end

      private :new
    end

    # @return [String] the absolute path of the file
    attr_reader :path

    # @return [Array<Hash{String => Object}>] `id`, `revision` and `commit` or `path`, and `files` with their `name`,
    #   `size` and `sha256`
    attr_reader :models

    def initialize(path, models)
      @path = path
      @models = models
    end

    # Locks a model as it is now, in place of what was locked of it before. One of the hub is fetched for that.
    #
    # @param source [String, Pathname] a Hugging Face id, a directory or a `.gguf` file
    # @param revision [String, nil] a branch, tag or commit of the hub
    # @param all [Boolean] every file, also those that no load reads
    # @return [Hash{String => Object}] what is now locked of it
    # @raise [ModelNotFoundError, DownloadError, OfflineError] when it can't be found or fetched
    def add(source, revision: nil, all: false)
      source = source.to_s
      entry = File.exist?(source) ? local(source, all) : packed(source, revision) || of_hub(source, revision, all)
      @models = @models.reject { |model| model.slice("id", "path") == entry.slice("id", "path") || same?(model, entry) }
      @models = (@models << entry).sort_by { |model| model["id"] }
      entry
    end

    # Fetches what is locked and not there yet, and compares all of it.
    #
    # @return [Hash{String => Array<String>}] the paths of each model's files
    # @raise [CorruptModelError] when a file has other bytes, with its name
    # @raise [ModelNotFoundError, DownloadError, OfflineError] when one can't be found or fetched
    def pull
      raise ModelNotFoundError, "#{path} names no model: add some with `red-candle lock SOURCE...`" if models.empty?

      models.to_h { |model| [model["id"], self.class.fetch(path, source_of(model))] }
    end

    # Writes the file. The old one stays until the new one is whole.
    #
    # @return [String] its path
    def write
      Utils.replace_file(path, "models.lock", "#{JSON.pretty_generate(red_candle_models: FORM, models: models)}\n")
      path
    end

    # @param model [Hash{String => Object}] one of {#models}
    # @return [String] what to load it by
    def source_of(model)
      model["path"] ? File.expand_path(model["path"], File.dirname(path)) : model["id"]
    end

    private

    def same?(one, other)
      one["path"] && other["path"] && source_of(one) == source_of(other)
    end

    def local(source, all)
      if source.match?(/-\d{5}-of-\d{5}\.gguf\z/)
        raise InvalidInputError, "#{source} is one part of several: lock the directory that holds them all"
      end

      directory, names = File.file?(source) ? [File.dirname(source), [File.basename(source)]] : [source, nil]
      names ||= Dir.glob("**/*", base: source).select { |name| File.file?(File.join(source, name)) }.sort
      names = CheckpointFiles.of(names) unless all || File.file?(source)
      raise ModelNotFoundError, "#{source} has no files of a model" if names.empty?

      require "pathname"
      place = Pathname(File.expand_path(source)).relative_path_from(Pathname(File.dirname(path))).to_s
      { "id" => source, "path" => place, "files" => fingerprints(directory, names) }
    end

    def of_hub(id, revision, all)
      names = Hub.files(id, revision: revision)
      names = CheckpointFiles.of(names) unless all
      directory = Hub.snapshot(id, revision: revision, files: names)
      { "id" => id, "revision" => revision || "main", "commit" => File.basename(directory),
        "files" => fingerprints(directory, names.sort) }
    end

    # A model that was installed as a gem has its own list.
    def packed(id, revision)
      pack = ModelGems.find(id) or return
      entry = self.class.read(File.join(pack, DEFAULT_PATH)).models.first
      entry if [nil, *entry.values_at("revision", "commit")].include?(revision)
    end

    def fingerprints(directory, names)
      names.map do |name|
        file = File.join(directory, name)
        { "name" => name, "size" => File.size(file), "sha256" => self.class.sha256(file) }
      end
    end
  end

  class << self
    # @return [String, nil] the path of the `models.lock` that loads obey; nil where they obey none
    attr_reader :models_lock

    # Makes every load take exactly the bytes that a `models.lock` lists, or fail: an error names the file that is
    # missing or has other bytes, and a model that is not listed is not loaded. Files that were named by themselves
    # (`Candle::Weights`, a `tokenizer.json`) are read as they are.
    #
    # @param path [String, Pathname, nil] the file; nil lifts it
    # @raise [ModelNotFoundError] when there is no such file
    # @raise [CorruptModelError] when it is something else
    def models_lock=(path)
      path &&= File.expand_path(path)
      ModelsLock.obey(path)
      @models_lock = path
    end
  end
end
