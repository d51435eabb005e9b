# frozen_string_literal: true

require "candle"
require "candle/files/model_registry"
require "candle/active_record"
require "candle/jobs/schema"
require "candle/jobs/ledger"
require "candle/jobs/corpus"
require "candle/jobs/keys"
require "candle/jobs/items"
require "candle/jobs/slice_policy"
require "candle/jobs/slice"
require "candle/jobs/work"
require "candle/jobs/backend"
require "candle/jobs/run"

module Candle
  # Embeds a corpus by the workers of Sidekiq or of Active Job, on as many machines as there are.
  #
  # The corpus is cut into slices of about a second, which a ledger in the database names; a job takes the next free
  # slice. Vectors and the slice's end are written in one transaction, so that a run is idempotent, and
  # resumable after a worker was killed.
  #
  # Loading this file needs neither Rails nor Sidekiq; running jobs needs Active Record and one of both.
  module Jobs
    class << self
      # Cuts a corpus into slices and enqueues a job for each.
      #
      # @param corpus [ActiveRecord::Relation, Class, Enumerable] records of a model with `has_embedding`; or texts,
      #   `[key, text]` pairs or Hashes of attributes, which are read once, in constant memory
      # @param into [Class, nil] where an Enumerable goes: a model with `has_embedding`
      # @param unique_by [Symbol, nil] the column of a unique index that tells one item of an Enumerable from another;
      #   nil is the digest's for texts and the primary key's otherwise
      # @param column [Symbol, nil] which of several columns of vectors
      # @param batch [Integer, nil] how many texts a slice has; nil measures how many take `seconds`
      # @param seconds [Numeric] how long a slice should take
      # @param rate [Numeric, nil] characters that a worker embeds per second, where it should not be measured here
      # @param lease [Numeric] seconds after which a slice whose worker was not heard of is given to another
      # @param attempts [Integer] how often a slice is tried
      # @param queue [String] of Sidekiq or Active Job
      # @return [Run] with the progress, and what stops it and lets it go on
      # @raise [ArgumentError] for a model without `has_embedding`, and for an Enumerable without `into:`
      def embed(corpus, into: nil, unique_by: nil, column: nil, batch: nil, seconds: 1.0, rate: nil, lease: 60,
                attempts: 10, queue: "default")
        Schema.ensure
        source = Corpus.for(corpus, into: into, unique_by: unique_by, column: column)
        policy = SlicePolicy.new(source, batch: Arguments.count(batch, "batch"), seconds: seconds, rate: rate)
        ledger = Ledger.start(source.description.merge(lease: lease, attempts: attempts, queue: queue))
        ledger.cut(source.slices(policy)) { |count| Backend.enqueue(ledger.id, count, queue: queue) }
        Run.new(ledger)
      end

      # @param id [Integer] of a run
      # @return [Run]
      # @raise [ArgumentError] when there is none
      def find(id)
        Run.new(Ledger.find(id))
      end

      # @return [Array<Run>] those that are neither finished nor stopped, oldest first
      def running
        Schema.there? ? Ledger.running.map { |ledger| Run.new(ledger) } : []
      end

      # Loads a model into this process and keeps it there, so that its first job finds it.
      #
      # @param source [String, Pathname] as `from_pretrained` takes it
      # @param options [Hash] as {ModelRegistry#preload} takes them
      # @return [Model]
      def preload(source, **options)
        registry.preload(source, **options)
      end

      # @return [ModelRegistry] the models of this process
      def registry
        ModelRegistry.shared
      end

      # Sees that runs go on whose jobs were lost with their workers. Sidekiq's workers call it when they start.
      #
      # @return [void]
      def resume
        Ledger.running.each(&:watch) if Schema.there?
      end

      # @return [Symbol, #enqueue] `:sidekiq`, `:active_job`, `:inline`, or an object with
      #   `enqueue(arguments, count:, delay:, queue:)`
      def backend
        Backend.chosen
      end

      # @param backend [Symbol, #enqueue, nil] as {#backend} names it; nil is what is there
      def backend=(backend)
        Backend.chosen = backend
      end

      # Enqueues a job that brings one record's vectors up to date.
      #
      # @api private
      # @param record [ActiveRecord::Base]
      # @return [void]
      def embed_record(record)
        Backend.enqueue(record.class.name, 1, second: record.id)
      end
    end
  end
end

require "candle/jobs/sidekiq_job" if defined?(Sidekiq)
ActiveSupport.on_load(:active_job) { require "candle/jobs/active_job_job" } if defined?(ActiveSupport.on_load)
