# frozen_string_literal: true

module Candle
  class CLI
    # `red-candle rm`.
    #
    # @api private
    class Remove < Verb
      # @param ids [Array<String>]
      # @return [void]
      # @raise [ModelNotFoundError] when one of them is not in the cache; then none is removed
      def call(ids)
        raise ArgumentError, "rm needs the id of a model, as red-candle models lists them" if ids.empty?

        found = ids.uniq.map { |id| repository(id) }
        removed = found.map do |repository|
          bytes = repository.bytes
          FileUtils.rm_r(repository.path, secure: true)
          { id: repository.id, freed: bytes }
        end
        show({ removed: removed }) { removed.each { |one| puts "removed #{one[:id]}, #{Terminal.size(one[:freed])}" } }
      end

      private

      def repository(id)
        all = HubCache.new.repositories
        all.find { |repository| repository.id == id } || raise(ModelNotFoundError, missing(id, all.map(&:id)))
      end

      def missing(id, known)
        similar = known.find { |other| other.split("/").last == id } || Hints.similar(id, known)
        Hints.with("#{id} is not in the cache #{HubCache.directory}", similar ? ["Did you mean #{similar}?"] : [])
      end
    end
  end
end
