# frozen_string_literal: true

module Candle
  class CLI
    # `red-candle pull` and `red-candle models`.
    #
    # @api private
    class Cache < Verb
      # What models need besides weights.
      SMALL = /\.(json|txt|model|jinja)\z/
      private_constant :SMALL

      # @param id [String]
      # @return [void]
      def pull(id)
        files = options[:all] ? nil : wanted(Hub.files(id, revision: options[:revision]))
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

      # The files that the loaders would read: safetensors, else one GGUF file, else a pickle.
      def wanted(files)
        small = files.grep(SMALL).reject { |name| name.start_with?("onnx/", "openvino/") }
        small + (some(files, %r{\A[^/]*\.safetensors\z}) || gguf(files) || some(files, %r{\A[^/]*\.bin\z}) || [])
      end

      def some(files, pattern)
        found = files.grep(pattern)
        found.empty? ? nil : found
      end

      def gguf(files)
        found = files.grep(/\.gguf\z/)
        best = found.grep(/q4_k_m/i).min || found.min or return
        # A file in parts needs all of them.
        best.match?(/-\d{5}-of-\d{5}/) ? found.select { |name| name.start_with?(best[/\A.*(?=-\d{5}-of)/]) } : [best]
      end

      def write(found, freed)
        rows = found.map { |model| [Terminal.size(model[:bytes]), model[:id]] }
        Terminal.table(rows) if rows.any?
        puts "freed #{Terminal.size(freed)}" if freed
      end
    end
  end
end
