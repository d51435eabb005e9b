# frozen_string_literal: true

require "delegate"
require "digest"

module Candle
  class Server
    # The models of a server by name. Those given by a source are loaded once, at start or when they are first asked
    # for.
    class Models
      # One model: its name and kind, and the model itself once it is loaded.
      #
      # @api private
      class Entry
        # @return [String]
        attr_reader :name
        # @return [Time, nil] since when the model can be used
        attr_reader :loaded_at

        def initialize(name, given, device)
          @name = name
          @lock = Mutex.new
          @adapting = Mutex.new
          @proven = false
          given = given.is_a?(Hash) ? given.transform_keys(&:to_sym) : { source: given }
          @source = given.fetch(:source) { raise ArgumentError, "the model #{name} has no source" }
          @kind = given[:kind]&.to_sym
          @options = { device: device }.compact.merge(given.except(:source, :kind))
          adopt unless source?
        end

        # @return [Symbol] one of the keys of {ModelKind::CLASSES}
        def kind
          @kind ||= ModelKind.of(@source)
        end

        # @return [Symbol, nil] {#kind}, unless files would have to be read to know it
        def known_kind
          @kind
        end

        # @return [Boolean] whether the model is there and has computed something
        def loaded?
          @proven
        end

        # @return [Model] loaded and tried out first, if it is not yet
        def model
          return @model if @proven

          @lock.synchronize do
            prepare unless @proven
            @model
          end
        end

        # @return [String, nil] the LoRA adapter that the name says; nil is the base model
        def adapter
          nil
        end

        # @return [Array<String>] the adapters that are loaded, or will be with the model
        def adapters
          loaded? && @model.respond_to?(:adapters) ? @model.adapters : @options[:adapters].to_h.keys.map(&:to_s)
        end

        # Changes the adapters of the model, while others generate with it.
        #
        # @yieldparam model [LLM]
        # @return [void]
        def adapt(&block)
          adapted = model
          @adapting.synchronize { block.call(adapted) }
        end

        # @return [String] the same for the same files
        def digest
          files = model.model_info.fetch(:files).map { |file| [File.basename(file), File.size?(file)] }
          Digest::SHA256.hexdigest(files.inspect)
        end

        # @return [Integer] bytes of the model's files
        def bytes
          model.model_info.fetch(:files).sum { |file| File.size?(file).to_i }
        end

        private

        def source?
          @source.is_a?(String) || @source.respond_to?(:to_path)
        end

        def adopt
          @kind ||= ModelKind.of_model(@source)
          @model = @source
        end

        def prepare
          @model ||= ModelKind.class_for(kind).from_pretrained(@source, **@options)
          @model.warm_up
          @loaded_at = Time.now
          @proven = true
        end
      end

      # A model with one of its LoRA adapters.
      #
      # @api private
      class Adapted < SimpleDelegator
        # @return [String]
        attr_reader :adapter

        # @param entry [Entry] the base model
        # @param adapter [String]
        def initialize(entry, adapter)
          super(entry)
          @adapter = adapter
        end

        # @return [String] both names
        def name
          "#{__getobj__.name}:#{adapter}"
        end

        # @return [String] the name of the base model
        def parent
          __getobj__.name
        end
      end

      include Enumerable

      # How many models an error names.
      NAMED = 20
      private_constant :NAMED

      # @param models [Hash{String => Model, String, Hash}] models, sources, or `{source:, kind:, ...}` with further
      #   options of `from_pretrained`
      # @param device [Device, String, nil] for those that are loaded here
      def initialize(models, device: nil)
        unless models.respond_to?(:to_hash) && models.to_hash.any?
          raise ArgumentError, "models must be a Hash of names and models, with one at least"
        end

        @entries = models.to_hash.to_h { |name, given| [name.to_s, Entry.new(name.to_s, given, device)] }
      end

      # @yieldparam entry [Entry]
      # @return [self, Enumerator]
      def each(&block)
        return enum_for(:each) unless block

        @entries.each_value(&block)
        self
      end

      # Loads what is not loaded yet.
      #
      # @return [self]
      def load
        each(&:model)
      end

      # @return [Array<Entry, Adapted>] every model, each followed by itself with its adapters
      def with_adapters
        flat_map { |entry| [entry, *entry.adapters.map { |adapter| Adapted.new(entry, adapter) }] }
      end

      # @return [Boolean] whether every model is there
      def loaded?
        all?(&:loaded?)
      end

      # @param name [String, nil] nil is the first model of the first kind that there is
      # @param kinds [Array<Symbol>] what it must be
      # @return [Entry]
      # @raise [Problem] 404 when there is none of that name, 400 when it is of another kind
      def fetch(name, *kinds)
        return first_of(kinds) if name.nil?

        entry = @entries[name] || @entries[name.to_s.delete_suffix(":latest")] || adapted(name)
        unless entry
          raise Problem.new(404, "model_not_found",
                            "there is no model #{name.inspect[0, 80]}; this server has #{names}", param: "model")
        end
        return entry if kinds.empty? || kinds.include?(entry.kind)

        raise Problem.new(400, "wrong_model", "the model #{entry.name} is of the kind #{entry.kind}, and this takes " \
                                              "#{kinds.join(" or ")}", param: "model")
      end

      private

      # A model and an adapter, as in `"chat:polite"`.
      def adapted(name)
        base, colon, adapter = name.to_s.delete_suffix(":latest").rpartition(":")
        entry = @entries[base] unless colon.empty?
        Adapted.new(entry, adapter) if entry&.adapters&.include?(adapter)
      end

      def first_of(kinds)
        return first if kinds.empty?

        kinds.filter_map { |kind| detect { |entry| entry.kind == kind } }.first ||
          raise(Problem.new(404, "model_not_found",
                            "this server has no model of the kind #{kinds.join(" or ")}; it has #{names}",
                            param: "model"))
      end

      # @return [String] every model with its kind, where that is known without loading it
      def names
        all = with_adapters
        listed = all.first(NAMED).map { |entry| entry.known_kind ? "#{entry.name} (#{entry.known_kind})" : entry.name }
        listed << "#{all.size - NAMED} more" if all.size > NAMED
        listed.join(", ")
      end
    end
  end
end
