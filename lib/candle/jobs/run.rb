# frozen_string_literal: true

module Candle
  module Jobs
    # One call of {Jobs.embed}: how far it has come, and what stops it and lets it go on.
    class Run
      # @param ledger [Ledger]
      # @api private
      def initialize(ledger)
        @ledger = ledger
      end

      # @return [Integer] by which {Jobs.find} finds it again
      def id
        @ledger.id
      end

      # @return [Symbol] `:running`, `:stopped` or `:finished`
      def state
        @ledger.state.to_sym
      end

      # @return [Boolean] whether every slice is done or failed
      def finished?
        state == :finished
      end

      # @return [Hash] counts of texts: `total`, and of these `embedded`, `skipped` (current already, or gone),
      #   `set_aside`, `failed` and `waiting`; `rate`, texts per second; `seconds` since the start, and `remaining` at
      #   that rate; `state`
      def progress
        sums = @ledger.sums
        sizes = Hash.new(0).merge(sums[:rows].to_h { |state, size,| [state, size] })
        embedded, skipped, aside = sums[:rows].reduce([0, 0, 0]) { |all, row| all.zip(row.last(3)).map(&:sum) }
        waiting = sizes["waiting"] + sizes["taken"]
        { total: sizes.values.sum, embedded: embedded, skipped: skipped, set_aside: aside, failed: sizes["failed"],
          waiting: waiting, **speed(sizes["done"], waiting, sums[:now] - sums[:started]), state: sums[:state].to_sym }
      end

      # Lets workers end the slices that they have, and take no more.
      #
      # @return [self]
      def stop
        @ledger.state = "stopped"
        self
      end

      # Goes on after {#stop}, or after jobs were lost with their queue.
      #
      # @param failed [Boolean] whether failed slices are tried again
      # @return [self]
      def continue(failed: false)
        @ledger.revive if failed
        @ledger.state = "running"
        @ledger.refill
        @ledger.watch unless @ledger.settle
        self
      end

      # Waits for the end.
      #
      # @param timeout [Numeric, nil] seconds
      # @param every [Numeric] seconds between two looks
      # @yieldparam progress [Hash] at every look
      # @return [Boolean] whether it is finished
      def wait(timeout: nil, every: 1)
        last = timeout && (now + timeout)
        loop do
          @ledger.settle
          yield progress if block_given?
          return true if finished?
          return false if state == :stopped || (last && now > last)

          sleep every
        end
      end

      # @return [Array<Hash>] `{key:, error:}` of texts that can't be embedded
      def set_aside
        @ledger.set_aside
      end

      # @return [Array<String>] the last error of each failed slice
      def errors
        @ledger.errors
      end

      # Forgets the run; its vectors stay. Workers that still have a slice of it write nothing any more.
      #
      # @return [void]
      def delete
        @ledger.delete
      end

      # @return [String] one line
      def inspect
        "#<#{self.class} #{id} #{progress.map { |name, value| "#{name}=#{value}" }.join(" ")}>"
      end

      private

      def speed(done, waiting, seconds)
        rate = seconds.positive? ? done / seconds : 0.0
        { rate: rate.round(1), seconds: seconds.round(1), remaining: rate.positive? ? (waiting / rate).round(1) : nil }
      end

      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end
    end
  end
end
