# frozen_string_literal: true

require "json"
require "rubygems"

module Candle
  # Models that were installed as gems, which `red-candle pack` builds: `red-candle-model-OWNER-NAME` holds the files of
  # a checkpoint with a list of their sizes and hashes, and `from_pretrained` finds it by the model's id. Under Bundler
  # only gems of the bundle count.
  #
  # A model too large for one gem is cut into pieces. They are put together on first use, in `red-candle/models` of
  # the user's cache (`XDG_CACHE_HOME`, or `~/.cache`).
  #
  # @example
  #   Candle::ModelGems.name_of("sentence-transformers/all-MiniLM-L6-v2")
  #   # => "red-candle-model-sentence-transformers-all-minilm-l6-v2"
  module ModelGems
    # Whose model a gem holds, in its metadata.
    METADATA = "red_candle_model"
    # Which files were cut, and the gems that hold their pieces in order.
    PIECES = "pieces.json"
    # The name of a piece in its gem.
    PIECE = "piece"

    class << self
      # @param id [String] a Hugging Face id
      # @return [String] the name of the gem that holds it
      def name_of(id)
        "red-candle-model-#{id.downcase.gsub(/[^a-z0-9_.]+/, "-")}"
      end

      # @param id [String] a Hugging Face id
      # @return [String, nil] the directory that holds the model's `models.lock`, and its files in `model`
      # @raise [ModelNotFoundError] when the gem is there but not all of its pieces
      # @raise [CorruptModelError] when its list of pieces is invalid
      def find(id)
        found = Gem::Specification.find_all_by_name(name_of(id)).select { |spec| spec.metadata[METADATA] == id }
        spec = found.max_by(&:version) or return
        File.file?(File.join(spec.gem_dir, PIECES)) ? assembled(spec, pieces_of(spec)) : spec.gem_dir
      end

      # @param sources [Array<String, nil>]
      # @return [Array<Array(String, String)>] each source that is a gem, with its directory; no path is one
      def packs(sources)
        ids = sources.compact.uniq.grep(%r{\A\w[\w.-]*(/[\w.-]+)?\z}).reject { |source| File.exist?(source) }
        ids.filter_map { |id| (pack = find(id)) && [id, pack] }
      end

      # @return [String] where models in pieces are put together
      def cache_directory
        base = ENV.fetch("XDG_CACHE_HOME", "")
        File.join(base.empty? ? File.join(Dir.home, ".cache") : base, "red-candle", "models")
      end

      private

      # @return [Hash{String => Array<String>}] the names of files within the model, and of the gems with their pieces
      def pieces_of(spec)
        pieces = JSON.parse(File.read(File.join(spec.gem_dir, PIECES), encoding: "UTF-8"), max_nesting: 8)
        unless pieces.is_a?(Hash) && pieces.all? { |_, gems| gems.is_a?(Array) && gems.any? && gems.all?(String) }
          raise damaged(spec, "it must be an object of file names with an array of gem names each")
        end

        outside = pieces.keys.find { |name| !inside?(name) }
        raise damaged(spec, "#{outside.inspect[0, 80]} is not the name of a file within the model") if outside

        pieces
      rescue JSON::ParserError, EncodingError
        raise damaged(spec, "it is not valid JSON")
      end

      # Whether a name stays below the directory that it is joined to, on every system.
      def inside?(name)
        !name.empty? && !name.match?(/[\0\\:]/) && name.split("/", -1).none? { |part| ["", ".", ".."].include?(part) }
      end

      def damaged(spec, reason)
        CorruptModelError.new("#{PIECES} of the gem #{spec.full_name} is damaged: #{reason}. Install the gem again: " \
                              "`gem install #{spec.name} --force`")
      end

      # Made beside its place and moved there whole, so that neither a crash nor another process is seen half-way.
      def assembled(spec, pieces)
        directory = File.join(cache_directory, spec.full_name)
        return directory if File.directory?(directory)

        require "fileutils"
        paths = pieces.transform_values { |gems| gems.map { |name| piece(spec, name) } }
        unfinished = "#{directory}.#{Process.pid}-#{Thread.current.object_id}"
        assemble(spec, paths, unfinished)
        move(unfinished, directory)
      ensure
        FileUtils.rm_rf(unfinished) if unfinished
      end

      # Another process may have been faster.
      def move(unfinished, directory)
        File.rename(unfinished, directory)
        directory
      rescue Errno::ENOTEMPTY, Errno::EEXIST
        directory
      end

      def assemble(spec, paths, directory)
        FileUtils.mkdir_p(directory)
        FileUtils.cp(File.join(spec.gem_dir, ModelsLock::DEFAULT_PATH), directory)
        whole = Dir.glob("**/*", base: File.join(spec.gem_dir, "model")) - paths.keys
        whole.each { |name| link(File.join(spec.gem_dir, "model", name), File.join(directory, "model", name)) }
        paths.each do |name, parts|
          target = File.join(directory, "model", name)
          FileUtils.mkdir_p(File.dirname(target))
          # A link that stands there already is not followed.
          File.open(target, File::WRONLY | File::CREAT | File::EXCL | File::BINARY) do |file|
            parts.each { |part| IO.copy_stream(part, file) }
          end
        end
      rescue Errno::ENOENT, Errno::EEXIST, Errno::ENOTDIR, Errno::EISDIR => e
        raise damaged(spec, e.message)
      end

      def link(from, to)
        return unless File.file?(from)

        FileUtils.mkdir_p(File.dirname(to))
        File.symlink(from, to)
      end

      def piece(spec, name)
        found = Gem::Specification.find_all_by_name(name, spec.version).first
        return File.join(found.gem_dir, PIECE) if found

        raise ModelNotFoundError, "#{spec.full_name} needs the gem #{name} #{spec.version}, which is not installed: " \
                                  "run `gem install #{spec.name}`, or `bundle install`"
      end
    end
  end
end
