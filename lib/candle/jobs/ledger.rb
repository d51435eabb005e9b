# frozen_string_literal: true

require "json"
require "securerandom"
require "socket"

module Candle
  module Jobs
    # What is known of one run in the database: its slices, who has which until when, and what became of them.
    #
    # A slice is free while it waits, and again when the lease of its worker has ended. Times are the database's.
    #
    # @api private
    class Ledger
      UNFINISHED = %w[waiting taken].freeze

      # A slice that this process took. The token tells its lease from a later one's, and a reader who has it.
      Taken = Struct.new(:id, :token, :payload, :texts, :attempts, :free_at)

      # What a slice came to.
      Outcome = Struct.new(:embedded, :skipped, :set_aside)

      class << self
        # @param description [Hash] what the workers need to know
        # @return [Ledger] of a new run
        def start(description)
          row = runs.create!(description: JSON.generate(description), started_at: now)
          new(row.id, description.transform_keys(&:to_s))
        end

        # @param id [Integer]
        # @return [Ledger]
        # @raise [ArgumentError] when there is none
        def find(id)
          lookup(id) || raise(ArgumentError, "there is no run #{id}")
        end

        # @param id [Integer]
        # @return [Ledger, nil] nil for a run that was deleted
        def lookup(id)
          row = runs.where(id: id).take
          row && new(row.id, JSON.parse(row.description))
        end

        # @return [Array<Ledger>]
        def running
          runs.where(state: "running").order(:id).map { |row| new(row.id, JSON.parse(row.description)) }
        end

        # @return [Class] models of Active Record, made on first use since it may come late
        def runs
          @runs ||= table(Schema::RUNS)
        end

        # @return [Class]
        def slices
          @slices ||= table(Schema::SLICES)
        end

        # @return [Class]
        def set_aside
          @set_aside ||= table(Schema::SET_ASIDE)
        end

        # @return [Float] seconds, by the clock that all workers share
        def now
          connection = runs.connection
          return Time.now.to_f unless connection.adapter_name.match?(/postg/i)

          connection.select_value("SELECT extract(epoch FROM clock_timestamp())::float8").to_f
        end

        private

        def table(name)
          Class.new(::ActiveRecord::Base) do
            self.table_name = name
            define_singleton_method(:name) { "Candle::Jobs::#{name}" }
          end
        end
      end

      # @return [Integer]
      attr_reader :id
      # @return [Hash{String => Object}] what {Jobs.embed} was asked for
      attr_reader :description

      def initialize(id, description)
        @id = id
        @description = description
      end

      # Writes slices down as they come, many at a time.
      #
      # @param pieces [Enumerable<Array(Object, Integer)>] the payload of each slice, and how many texts it has
      # @yieldparam count [Integer] how many slices have come
      # @return [void]
      def cut(pieces)
        pieces.each_slice(200) do |group|
          rows = group.map { |payload, size| { run_id: id, payload: JSON.generate(payload), size: size } }
          self.class.slices.insert_all(rows)
          yield rows.size
        end
        run.update_all(cut: true)
        settle
      end

      # @return [String] `"running"`, `"stopped"` or `"finished"`
      def state
        run.pick(:state)
      end

      # @param state [String]
      # @return [void]
      def state=(state)
        run.where.not(state: "finished").update_all(state: state)
      end

      # Takes a free slice, or returns nil where all are taken. One that was tried too often is marked as failed.
      #
      # @return [Taken, nil]
      def take
        now = self.class.now
        while (rows = free(now).order(:id).limit(32).to_a).any?
          taken = rows.shuffle.lazy.filter_map { |row| lease(row, now) }.first
          return taken if taken
        end
      end

      # Extends the lease of a slice that takes long, when half of it is over.
      #
      # @param taken [Taken]
      # @return [Boolean] false where another worker has the slice
      def renew(taken)
        now = self.class.now
        return true if taken.free_at - now > description.fetch("lease") / 2.0

        taken.free_at = now + description.fetch("lease")
        held(taken).update_all(free_at: taken.free_at) == 1
      end

      # Ends a slice in the transaction that its vectors are written in.
      #
      # @param taken [Taken]
      # @yieldreturn [Outcome]
      # @return [Boolean] false where another worker had the slice meanwhile: nothing is written then
      def finish(taken)
        self.class.slices.transaction do
          mine = held(taken).update_all(state: "done", error: nil, payload: "[]") == 1
          raise ::ActiveRecord::Rollback unless mine

          outcome = yield
          rows = outcome.set_aside.map { |key, error| { run_id: id, key: key.to_s[0, 255], error: error } }
          self.class.set_aside.insert_all(rows) if rows.any?
          slice(taken.id).update_all(embedded: outcome.embedded, skipped: outcome.skipped, set_aside: rows.size)
          true
        end || false
      end

      # Gives a slice back to be tried again: later each time after an error, at once after none.
      #
      # @param taken [Taken]
      # @param error [Exception, nil] nil where the worker was only asked to stop
      # @return [void]
      def give_back(taken, error = nil)
        return held(taken).update_all(state: "waiting", attempts: taken.attempts - 1, free_at: 0) if error.nil?

        message = "#{error.class}: #{error.message}"
        last = taken.attempts >= description.fetch("attempts")
        held(taken).update_all(state: last ? "failed" : "waiting", error: message,
                               free_at: self.class.now + (0.5 * (2**taken.attempts)))
      end

      # Lets failed slices be tried again.
      #
      # @return [void]
      def revive
        slices.where(state: "failed").update_all(state: "waiting", attempts: 0, free_at: 0)
        run.where(state: "finished").update_all(state: "running", finished_at: nil) if unfinished?
      end

      # Marks the run as finished when it is.
      #
      # @return [Boolean] whether it is
      def settle
        return false if unfinished? || !run.pick(:cut)

        run.where.not(state: "finished").update_all(state: "finished", finished_at: self.class.now)
        true
      end

      # @return [Boolean]
      def unfinished?
        slices.where(state: UNFINISHED).exists?
      end

      # Sees that a job will look after slices whose job was lost: one delayed job at a time.
      #
      # @return [void]
      def watch
        now = self.class.now
        delay = [description.fetch("lease") / 2.0, 1.0].max
        # A little less than the delay, so that the delayed job finds it past.
        due = run.where(state: "running").where("watched_until < ?", now).update_all(watched_until: now + (0.9 * delay))
        Backend.enqueue(id, 1, second: "watch", delay: delay, queue: description["queue"]) if due == 1
      end

      # Enqueues jobs for free slices when nobody is at work: those that were enqueued for them are gone.
      #
      # @return [Integer] how many
      def refill
        now = self.class.now
        return 0 if slices.where(state: "taken").where("free_at >= ?", now).exists?

        count = free(now).count
        Backend.enqueue(id, count, queue: description["queue"]) if count.positive?
        count
      end

      # Forgets the run.
      #
      # @return [void]
      def delete
        self.class.set_aside.where(run_id: id).delete_all
        slices.delete_all
        run.delete_all
      end

      # @return [Hash{Symbol => Object}] sums over the slices, and times
      def sums
        columns = %w[size embedded skipped set_aside].map { |name| "COALESCE(SUM(#{name}), 0)" }
        rows = slices.group(:state).pluck(:state, *columns.map { |sum| Arel.sql(sum) })
        started, finished, cut, state = run.pick(:started_at, :finished_at, :cut, :state)
        { rows: rows, started: started, now: finished || self.class.now, cut: cut, state: state }
      end

      # @return [Array<Hash>] `{key:, error:}` of texts that can't be embedded
      def set_aside
        rows = self.class.set_aside.where(run_id: id).order(:id).pluck(:key, :error)
        rows.map { |key, error| { key: key, error: error } }
      end

      # @return [Array<String>] the errors of failed slices
      def errors
        slices.where(state: "failed").order(:id).pluck(:error)
      end

      private

      def run
        self.class.runs.where(id: id)
      end

      def slices
        self.class.slices.where(run_id: id)
      end

      def slice(slice_id)
        self.class.slices.where(id: slice_id)
      end

      # Waiting, or left by a worker whose lease has ended.
      def free(now)
        slices.where(state: UNFINISHED).where("free_at < ?", now)
      end

      def held(taken)
        slice(taken.id).where(state: "taken", token: taken.token)
      end

      def lease(row, now)
        unchanged = slice(row.id).where(state: row.state, token: row.token)
        if row.attempts >= description.fetch("attempts")
          unchanged.update_all(state: "failed", error: row.error || "its worker died #{row.attempts} times")
          return
        end

        token = "#{Socket.gethostname} #{Process.pid} #{SecureRandom.uuid}"
        changes = { state: "taken", token: token, attempts: row.attempts + 1,
                    free_at: now + description.fetch("lease") }
        return unless unchanged.update_all(changes) == 1

        Taken.new(row.id, token, JSON.parse(row.payload), row.size, *changes.values_at(:attempts, :free_at))
      end
    end
  end
end
