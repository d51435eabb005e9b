# frozen_string_literal: true

module Candle
  # The labels of a recognizer, by the names that users may give them.
  #
  # @api private
  class EntityLabels
    # Labels of different schemes that stand for the same kind of entity.
    SYNONYMS = [
      %w[PER PERS PERSON PERSONS PEOPLE NAME], %w[LOC LOCATION LOCATIONS PLACE GPE],
      %w[ORG ORGANIZATION ORGANISATION ORGANIZATIONS COMPANY CORPORATION], %w[MISC MISCELLANEOUS OTHER]
    ].freeze
    private_constant :SYNONYMS

    # @param known [Array<String>]
    def initialize(known)
      @known = known.uniq
    end

    # @param labels [Array<String, Symbol>, String, Symbol] in any case
    # @return [Array<String>] the known labels that they stand for
    # @raise [InvalidInputError] for none, and for one that stands for no known label
    def resolve(labels)
      labels = Array(labels).map { |label| Arguments.label(label, "labels") }
      raise InvalidInputError, "labels is empty: pass nil for all entities, or some of #{listed}" if labels.empty?

      labels.flat_map { |label| matching(label) }.uniq
    end

    private

    def matching(label)
      exact = @known.select { |name| name.casecmp?(label) }
      return exact if exact.any?

      group = SYNONYMS.find { |names| names.include?(label.upcase) } || []
      found = @known.select { |name| group.include?(name.upcase) }
      return found if found.any?

      raise InvalidInputError, "unknown label #{label.inspect}: the labels are #{listed}"
    end

    def listed
      @known.empty? ? "none, since no recognizer was added" : @known.sort.join(", ")
    end
  end
end
