# frozen_string_literal: true

module Candle
  class Server
    # Loads and unloads LoRA adapters of a language model while it is served, by the paths of vLLM. Each is a model of
    # its own: `name:adapter`. The weights of the model stay as they are, and requests under way end with the adapter
    # that they were begun with.
    #
    # @api private
    class Adapters < OpenAI
      NAME = /\A[\w.-]{1,64}\z/
      # How many a model has at most.
      MOST = 64
      private_constant :NAME, :MOST

      # @param path [String, nil]
      # @param token [String, nil] of the server
      # @return [String, nil] the folder itself
      # @raise [ArgumentError] for one that does not exist, or without a token
      def self.folder(path, token)
        return if path.nil?

        unless token
          raise ArgumentError,
                "adapters needs a token: only clients that send it may load and unload adapters"
        end
        raise ArgumentError, "adapters must be a folder, not #{path}" unless File.directory?(path)

        File.realpath(path)
      end

      # @param services [API::Services]
      def initialize(services)
        super
        @process = Process.pid
      end

      # @param request [Request]
      # @return [Array] an answer of Rack
      def load(request)
        entry, name = named(request)
        source = source(request)
        compute(request) do
          entry.adapt do |model|
            raise taken(entry, name) if model.adapters.include?(name)
            raise invalid("#{entry.name} has #{MOST} adapters: unload one first") if model.adapters.size >= MOST

            model.load_adapter(name, source)
          end
        end
        json({ status: "loaded", model: "#{entry.name}:#{name}" })
      end

      # @param request [Request]
      # @return [Array] an answer of Rack
      def unload(request)
        entry, name = named(request)
        compute(request) do
          entry.adapt do |model|
            unless model.adapters.include?(name)
              raise Problem.new(404, "adapter_not_found", "#{entry.name} has no adapter #{name}", param: "lora_name")
            end

            model.unload_adapter(name)
          end
        end
        json({ status: "unloaded", model: "#{entry.name}:#{name}" })
      end

      private

      # The adapter, and the model that it is of: `lora_name` may say both.
      def named(request)
        check_allowed
        base, colon, name = request.field("lora_name", String).rpartition(":")
        raise invalid("lora_name must be a short name", param: "lora_name") unless name.match?(NAME)

        entry = models.fetch(request.field("model", String, default: colon.empty? ? nil : base), :llm)
        raise invalid("model must be a base model", param: "model") if entry.adapter

        [entry, name]
      end

      def check_allowed
        unless services.adapters
          raise Problem.new(403, "fixed_adapters", "adapters are fixed: the operator has named no folder of them")
        end
        return if Process.pid == @process

        raise Problem.new(501, "several_processes", "with several processes adapters are fixed: name them at the start")
      end

      # Nothing outside the operator's folder is opened.
      def source(request)
        given = request.field("lora_path", String)
        path = File.realpath(given, services.adapters)
        return path if path.start_with?("#{services.adapters}/") && File.directory?(path)

        raise invalid("lora_path must be within the folder of adapters", param: "lora_path")
      rescue SystemCallError, ArgumentError
        raise invalid("lora_path names no folder of an adapter", param: "lora_path")
      end

      def taken(entry, name)
        Problem.new(400, "adapter_exists", "#{entry.name} has an adapter #{name} already", param: "lora_name")
      end
    end
  end
end
