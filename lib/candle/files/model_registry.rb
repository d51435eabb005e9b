# frozen_string_literal: true

require "monitor"
require "weakref"

module Candle
  # The models of this process, each loaded once whatever the number of threads that ask for it.
  #
  # A model is held while a call uses it and for some seconds after; then only weakly, so that the garbage collector
  # may take it, unless it was preloaded. After a fork, models on the CPU stay; those on a GPU are loaded again.
  #
  # @example
  #   registry = Candle::ModelRegistry.new
  #   size = registry.use("spec/fixtures/tiny/bert-sentence") { |model| model.embed("fox").size }
  #   size # => 32
  #   registry.preload("spec/fixtures/tiny/bert-sentence").dimension # => 32
  class ModelRegistry
    # What is known of one model. `model` is nil while it is only held weakly.
    Entry = Struct.new(:lock, :model, :weak, :users, :last_use, :kept)
    private_constant :Entry

    class << self
      # @return [ModelRegistry] that of this process
      def shared
        @shared ||= new
      end
    end

    # @param idle_seconds [Numeric] how long a model that nobody uses is held
    def initialize(idle_seconds: 300)
      @idle_seconds = idle_seconds
      @entries = {}
      @lock = Monitor.new
      @process = Process.pid
    end

    # Calls the block with the model, which is loaded unless it is there.
    #
    # @param source [String, Pathname] as `from_pretrained` takes it
    # @param klass [Class] {EmbeddingModel}, {Reranker} or another class of models
    # @param options [Hash] as `from_pretrained` takes them
    # @yieldparam model [Model]
    # @return [Object] what the block returns
    def use(source, klass: EmbeddingModel, **options)
      entry = enter(source, klass, options)
      begin
        yield model_of(entry, source, klass, options)
      ensure
        leave(entry)
      end
    end

    # Loads a model, computes something tiny with it, and holds it for good.
    #
    # @param source [String, Pathname] as `from_pretrained` takes it
    # @param klass [Class] {EmbeddingModel}, {Reranker} or another class of models
    # @param options [Hash] as `from_pretrained` takes them
    # @return [Model]
    def preload(source, klass: EmbeddingModel, **options)
      entry = enter(source, klass, options)
      entry.kept = true
      model_of(entry, source, klass, options).warm_up
    ensure
      leave(entry)
    end

    # Lets go of every model that nobody uses, preloaded ones too.
    #
    # @return [void]
    def release
      @lock.synchronize do
        @entries.each_value { |entry| entry.kept = false }
        weaken(0)
        @entries.delete_if { |_, entry| entry.users.zero? }
      end
    end

    # @return [Hash{String => Integer}] how many calls use each model that is held
    def uses
      @lock.synchronize do
        @entries.select { |_, entry| entry.model }.to_h { |(_, source, _), entry| [source, entry.users] }
      end
    end

    private

    def enter(source, klass, options)
      @lock.synchronize do
        after_fork if @process != Process.pid
        weaken(@idle_seconds)
        entry = @entries[[klass, source.to_s, options]] ||= Entry.new(Mutex.new, nil, nil, 0, now, false)
        entry.users += 1
        entry
      end
    end

    def leave(entry)
      @lock.synchronize do
        entry.users -= 1
        entry.last_use = now
      end
    end

    # Each model has a lock of its own: one that is being loaded holds up no other.
    def model_of(entry, source, klass, options)
      entry.lock.synchronize do
        entry.model ||= revived(entry) || klass.from_pretrained(source, **options)
      end
    end

    def revived(entry)
      entry.weak&.__getobj__
    rescue WeakRef::RefError
      nil
    end

    def weaken(seconds)
      @entries.each_value do |entry|
        next if entry.users.positive? || entry.kept || entry.model.nil? || now - entry.last_use < seconds

        entry.weak = WeakRef.new(entry.model)
        entry.model = nil
      end
    end

    # Nobody of the parent's threads is here, and a lock that one of them held would stay locked.
    def after_fork
      @process = Process.pid
      @entries.select! { |_, entry| entry.model && entry.model.device.kind == :cpu }
      @entries.each_value do |entry|
        entry.lock = Mutex.new
        entry.users = 0
      end
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end
  end
end
