# frozen_string_literal: true

require "fileutils"

module Candle
  class CLI
    # The hub's cache on this machine, in its own layout: blobs, and snapshots that link to them.
    #
    # @api private
    class HubCache
      # One repository in the cache.
      Repository = Struct.new(:id, :path, keyword_init: true) do
        # @return [Integer] bytes of its files
        def bytes
          stored.sum { |path| File.size(path) }
        end

        # @return [Array<String>] files that are really there, not links
        def stored
          Dir.glob(File.join(path, "{blobs,snapshots}/**/*")).select { |file| File.file?(file) && !File.symlink?(file) }
        end

        # @return [Array<String>] the commits that branches and tags name
        def current
          named = Dir.glob(File.join(path, "refs", "**", "*")).select { |file| File.file?(file) }
          named.map { |file| File.read(file).strip }
        end

        # @return [String, nil] the directory of the commit that `main` names, or of any
        def snapshot
          main = File.join(path, "refs", "main")
          commit = File.read(main).strip if File.file?(main)
          found = [commit, *current, *snapshots].compact.find { |name| snapshots.include?(name) }
          found && File.join(path, "snapshots", found)
        end

        # @return [Array<String>] commits that are there
        def snapshots
          Dir.children(File.join(path, "snapshots"))
        rescue Errno::ENOENT
          []
        end
      end

      # @return [String]
      def self.directory
        ENV.fetch("HF_HUB_CACHE") do
          File.join(ENV.fetch("HF_HOME") { File.join(Dir.home, ".cache", "huggingface") }, "hub")
        end
      end

      # @return [Array<Repository>] sorted by id
      def repositories
        Dir.glob(File.join(self.class.directory, "models--*")).sort.map do |path|
          Repository.new(id: File.basename(path).delete_prefix("models--").gsub("--", "/"), path: path)
        end
      end

      # Removes snapshots that no branch or tag names, blobs that no snapshot links to, and unfinished downloads.
      #
      # @return [Integer] bytes that were freed
      def prune
        before = repositories.sum(&:bytes)
        repositories.each { |repository| prune_repository(repository) }
        before - repositories.sum(&:bytes)
      end

      private

      def prune_repository(repository)
        current = repository.current
        # Without any name it can't be told which snapshot is the current one.
        if current.any?
          (repository.snapshots - current).each do |commit|
            FileUtils.rm_rf(File.join(repository.path, "snapshots", commit))
          end
        end
        links = Dir.glob(File.join(repository.path, "snapshots/**/*")).select { |file| File.symlink?(file) }
        used = links.map { |link| File.expand_path(File.readlink(link), File.dirname(link)) }
        (Dir.glob(File.join(repository.path, "blobs", "*")) - used).each { |blob| FileUtils.rm_f(blob) }
      end
    end
  end
end
