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
        return list_supported if options[:supported]

        cache = HubCache.new
        freed = cache.prune if options[:prune]
        found = cache.repositories.map do |repository|
          { id: repository.id, kind: kind(repository), bytes: repository.bytes,
            revisions: repository.snapshots.size }.compact
        end
        show({ directory: HubCache.directory, models: found, freed: freed }.compact) { write(found, freed) }
      end

      private

      def list_supported
        supported = Candle.supported_models
        show({ models: supported }) do
          Terminal.table(supported.map { |model| supported_row(model) })
        end
      end

      def supported_row(model)
        [model[:model_type], model[:tasks].join(" "), formats(model), model[:devices].join(" ")]
      end

      def formats(model)
        names = { "gguf" => model[:architectures], "mmproj" => model[:projectors] }.reject { |_, found| found.empty? }
        [*model[:formats] - ["gguf"], *names.map { |kind, found| "#{kind}: #{found.join(" ")}" }].join(" ")
      end

      # By the files that are there; nothing is fetched.
      def kind(repository)
        repository.snapshot && ModelKind.of(repository.snapshot)
      rescue Error
        nil
      end

      def write(found, freed)
        rows = found.map { |model| [model[:id], model[:kind] || "unknown", Terminal.size(model[:bytes])] }
        Terminal.table(rows) if rows.any?
        puts "freed #{Terminal.size(freed)}" if freed
      end
    end
  end
end
