# frozen_string_literal: true

module Candle
  module Jobs
    # What all corpora have: a model with `has_embedding`, and a way to be cut.
    #
    # @api private
    module Corpus
      class << self
        # @return [Keys, Items] the corpus that was given to {Jobs.embed}
        # @raise [ArgumentError] for anything else
        def for(corpus, into:, unique_by:, column:)
          if corpus.respond_to?(:all) && corpus.respond_to?(:find_by)
            raise ArgumentError, "into: is for Enumerables; records stay where they are" if into

            return Keys.new(corpus.all, column)
          end
          raise ArgumentError, "corpus must be a relation or an Enumerable" unless corpus.respond_to?(:each)

          into ||= raise(ArgumentError, "an Enumerable needs into:, the model that keeps the vectors")
          Items.new(corpus, into, unique_by, column)
        end

        # @param description [Hash] of a run
        # @return [Keys, Items] that which its slices are of
        def described(description)
          klass = Object.const_get(description.fetch("target"))
          column = description.fetch("column")
          return Keys.new(klass.unscoped, column) if description.fetch("kind") == "keys"

          Items.new(nil, klass, description.fetch("unique_by"), column)
        end

        # @param klass [Class] a model of Active Record
        # @param column [String, Symbol, nil]
        # @return [ActiveRecord::Embedding]
        # @raise [ArgumentError]
        def embedding(klass, column)
          raise ArgumentError, "#{klass} is not a model with has_embedding" unless klass.respond_to?(:candle_embedding)

          klass.candle_embedding(column)
        end
      end

      # Cuts by what texts weigh, where that is known.
      #
      # @param weighed [Enumerable<Array(Object, Integer)>] parts, and how many characters each has
      # @param policy [SlicePolicy]
      # @return [Enumerator] of Arrays of parts
      def gather(weighed, policy)
        Enumerator.new do |slices|
          parts = []
          weight = 0
          weighed.each do |part, characters|
            cost = policy.cost(characters)
            if parts.any? && policy.full?(parts.size, weight + cost)
              slices << parts
              parts = []
              weight = 0
            end
            parts << part
            weight += cost
          end
          slices << parts if parts.any?
        end
      end
    end
  end
end
