# frozen_string_literal: true

module Candle
  module Jobs
    # The work on one slice: embed what is not current, set aside what can't be embedded, write and acknowledge.
    #
    # @api private
    class Slice
      # A text on its way to a vector. `stored_digest` is that of the vector which is there, `error` says why there can
      # be none.
      Entry = Struct.new(:key, :text, :stored_digest, :attributes, :digest, :vector, :error)

      # So many texts are embedded at once.
      PART = 256

      # Errors that a text is to blame for. Others are the machine's or the model's, and the slice is tried again.
      POISON = [InvalidInputError, TokenizerError, InternalError].freeze

      # @param ledger [Ledger]
      # @param taken [Ledger::Taken]
      def initialize(ledger, taken)
        @ledger = ledger
        @taken = taken
        @corpus = Corpus.described(ledger.description)
      end

      # @return [Boolean] false where another worker had the slice meanwhile
      # @raise [Error] when every text is refused: then the model is to blame, or how it is used
      def perform
        stale = stale_entries
        texts = stale.select { |entry| entry.text && entry.error.nil? }
        return false unless embed(texts)

        refused = stale.select(&:error)
        raise Error, "every text is refused: #{refused.first.error}" if texts.size > 1 && (texts - refused).empty?

        acknowledge(stale)
      end

      private

      def acknowledge(entries)
        @corpus.transaction do
          @ledger.finish(@taken) do
            embed_changed(entries)
            refused, good = entries.partition(&:error)
            stale = good.reject { |entry| entry.digest == entry.stored_digest }
            changed = stale.empty? ? 0 : @corpus.store(stale)
            aside = refused.map { |entry| [entry.key, entry.error] }
            Ledger::Outcome.new(changed, @taken.texts - changed - aside.size, aside)
          end
        end
      end

      # Texts that became others while the slice was computed.
      def embed_changed(entries)
        changed = @corpus.reread(entries)
        texts = changed.select { |entry| entry.text && entry.digest != entry.stored_digest }
        embed_part(texts) if texts.any?
      end

      def stale_entries
        @corpus.entries(@taken.payload).select do |entry|
          entry.digest = @corpus.embedding.digest(entry.text)
          entry.error || entry.digest != entry.stored_digest
        end
      end

      # In parts, between which the lease is looked after.
      #
      # @return [Boolean] false where the slice was lost meanwhile
      def embed(entries)
        entries.each_slice(PART).all? do |part|
          embed_part(part)
          @ledger.renew(@taken)
        end
      end

      # Halves a batch that is refused until the text is found that is to blame.
      def embed_part(entries)
        vectors = @corpus.embedding.vectors(entries.map(&:text))
        entries.zip(vectors) { |entry, vector| entry.vector = vector }
      rescue *POISON => e
        return entries.first.error = "#{e.class}: #{e.message}" if entries.size == 1

        entries.each_slice((entries.size + 1) / 2) { |half| embed_part(half) }
      end
    end
  end
end
