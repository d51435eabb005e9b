# frozen_string_literal: true

module Candle
  class Index
    # How the vectors of a text's tokens become one vector of fixed size, by which texts are found for MaxSim.
    #
    # @api private
    class Pruning
      USUAL = { repetitions: 10, bits: 4, projection: 16, seed: 42 }.freeze
      private_constant :USUAL

      # @return [Integer] the size of a token's vector
      attr_reader :dimension

      # @param given [Boolean, Hash, nil]
      # @param model [LateInteractionModel, nil]
      # @return [Pruning, nil]
      # @raise [ArgumentError] for what is none of it
      def self.read(given, model)
        case given
        when nil, false then return
        when true then given = {}
        when Hash then nil
        else raise ArgumentError, "pruning must be true or a Hash, not #{Arguments.shown(given)}"
        end
        raise ArgumentError, "pruning needs a late-interaction model" unless model

        given = given.transform_keys { |name| Arguments.label(name, "pruning").to_sym }
        Hints.refuse(given.except(*USUAL.keys), USUAL.keys) unless (given.keys - USUAL.keys).empty?
        given = USUAL.merge(projection: [USUAL[:projection], model.dimension].min).merge(given)
        new(model.dimension, given.to_h { |name, value| [name, Arguments.count(value, name.to_s) || USUAL[name]] })
      end

      # What a file says.
      #
      # @param values [Hash]
      # @param dimension [Integer]
      # @param size [Integer] of the file's vectors
      # @return [Pruning]
      # @raise [CorruptModelError] for what is none of it
      def self.restore(values, dimension, size)
        sound = Hash === values && (USUAL.keys - values.keys).empty? && Integer === dimension &&
                values.values_at(*USUAL.keys).all? { |value| Integer === value && value.between?(0, 2**63) }
        found = new(dimension, values.slice(*USUAL.keys)) if sound && values[:bits] <= 12
        return found if found&.size == size

        raise CorruptModelError,
              "the index has vectors of #{size} numbers, which its pruning does not make. Build it again"
      end

      def initialize(dimension, values)
        @dimension = dimension
        @values = values
      end

      # @return [Integer] of a text's vector
      def size
        (@values[:repetitions] * (2**@values[:bits]) * @values[:projection]) + 1
      end

      # @return [Hash]
      def to_h
        @values.dup
      end
    end
  end
end
