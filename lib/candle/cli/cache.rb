# frozen_string_literal: true

module Candle
  class CLI
    # `red-candle pull` and `red-candle models`.
    #
    # @api private
    class Cache < Verb
      # @param id [String]
      # @return [void]
      def pull(id)
        files = options[:all] ? nil : CheckpointFiles.of(Hub.files(id, revision: options[:revision]))
        path = Hub.snapshot(id, revision: options[:revision], files: files)
        show({ id: id, path: path, files: files&.size }.compact) { puts path }
      end

      # @return [void]
      def list
        cache = HubCache.new
        freed = cache.prune if options[:prune]
        found = cache.repositories.map do |repository|
          { id: repository.id, bytes: repository.bytes, revisions: repository.snapshots.size }
        end
        show({ directory: HubCache.directory, models: found, freed: freed }.compact) { write(found, freed) }
      end

      private

      def write(found, freed)
        rows = found.map { |model| [Terminal.size(model[:bytes]), model[:id]] }
        Terminal.table(rows) if rows.any?
        puts "freed #{Terminal.size(freed)}" if freed
      end
    end
  end
end
