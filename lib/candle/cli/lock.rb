# frozen_string_literal: true

module Candle
  class CLI
    # `red-candle lock`, and `red-candle pull --locked`.
    #
    # @api private
    class Lock < Verb
      # @param sources [Array<String>] none stands for all that are locked already
      # @return [void]
      def call(sources)
        lock = ModelsLock.read(options[:file])
        entries = (sources.empty? ? known(lock) : sources.map { |source| [source, options[:revision]] }).map do |pair|
          Terminal.note("locking #{pair.first} ...")
          lock.add(pair.first, revision: pair.last, all: options[:all])
        end
        lock.write
        show({ file: lock.path, models: entries }) { entries.each { |entry| puts line(entry) } }
      end

      # @return [void]
      def pull
        pulled = ModelsLock.read(options[:file]).pull
        show(pulled) { pulled.each { |id, files| puts "#{id}: #{files.size} files as locked" } }
      end

      private

      def known(lock)
        if lock.models.empty?
          raise ArgumentError, "nothing is locked in #{lock.path} yet: name models, as in red-candle lock owner/name"
        end

        lock.models.map { |model| [lock.source_of(model), options[:revision] || model["revision"]] }
      end

      def line(entry)
        bytes = entry["files"].sum { |file| file["size"] }
        "#{[entry["id"], entry["commit"]].compact.join(" at ")}: #{entry["files"].size} files, #{Terminal.size(bytes)}"
      end
    end
  end
end
