# frozen_string_literal: true

module Candle
  module Jobs
    # How much a slice takes: a number of texts that was given, or what can be embedded in some seconds.
    #
    # @api private
    class SlicePolicy
      # As many texts are tried out at most, and as many go into a slice at most.
      SAMPLE = 64
      MOST = 5000

      # What a text costs besides its characters: its special tokens, its row, its place in the batch.
      OVERHEAD = 16

      # @param corpus [Keys, Items]
      # @param batch [Integer, nil]
      # @param seconds [Numeric]
      # @param rate [Numeric, nil] characters per second
      def initialize(corpus, batch:, seconds:, rate:)
        unless seconds.is_a?(Numeric) && seconds.positive?
          raise ArgumentError, "seconds must be a positive number, not #{seconds.inspect}"
        end

        @batch = batch
        @longest = Float::INFINITY
        return if batch

        @mean = 100
        @budget = seconds * (rate || measured(corpus))
      end

      # @param characters [Integer, nil]
      # @return [Numeric]
      def cost(characters)
        OVERHEAD + [characters || @mean || 0, @longest].min
      end

      # @return [Boolean] whether a slice of so many texts, at this cost with the next one, takes no more
      def full?(count, cost)
        @batch ? count >= @batch : count >= MOST || cost > @budget
      end

      private

      # Embeds a few of the texts, as a worker will.
      def measured(corpus)
        texts = corpus.sample(SAMPLE)
        return Float::MAX if texts.empty?

        @mean = texts.sum(&:length) / texts.size
        started = nil
        corpus.embedding.with_model do |model|
          @longest = 4 * model.max_length if model.max_length
          model.warm_up
          started = now
          model.embed(texts, as: :packed)
        end
        texts.sum { |text| cost(text.length) } / [now - started, 1e-6].max
      end

      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end
    end
  end
end
