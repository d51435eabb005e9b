# frozen_string_literal: true

module Candle
  class CLI
    # `red-candle serve`.
    #
    # @api private
    class Serve < Verb
      LIMITS = %i[running waiting max_tokens seconds].freeze
      private_constant :LIMITS

      # @param sources [Array<String>] `[NAME[:KIND]=]SOURCE`
      # @return [Hash{String => Hash}] names, and what is to be loaded
      # @raise [ArgumentError] for a name that is given twice, or an unknown kind
      def self.models(sources)
        raise ArgumentError, "serve needs a model, as in: red-candle serve NAME=SOURCE" if sources.empty?

        sources.each_with_object({}) do |given, models|
          name, kind, source = given.match(/\A(?:([\w.-]+)(?::([a-z0-9_]+))?=)?(.+)\z/m).captures
          name ||= File.basename(source, ".gguf")
          raise ArgumentError, "two models have the name #{name}: say NAME=SOURCE" if models.key?(name)

          ModelKind.class_for(kind) if kind
          models[name] = { source: source, kind: kind }.compact
        end
      end

      # @param models [Hash{String => Hash}]
      # @param adapters [Array<String>, nil] `MODEL:NAME=SOURCE`
      # @return [Hash{String => Hash}] the models with their adapters
      # @raise [ArgumentError] for an adapter that names no model
      def self.with_adapters(models, adapters)
        Array(adapters).each do |given|
          base, name, source = given.match(/\A([\w.-]+):([\w.-]+)=(.+)\z/m)&.captures
          unless models.key?(base)
            raise ArgumentError, "--adapter must be MODEL:NAME=SOURCE with one of the models " \
                                 "#{models.keys.join(", ")}, not #{given}"
          end

          models[base][:adapters] = models[base].fetch(:adapters, {}).merge(name => source)
        end
        models
      end

      # @param sources [Array<String>]
      # @return [void]
      def call(sources)
        models = self.class.with_adapters(self.class.models(sources), options[:adapter])
        Server::Launcher.checked_port(options[:port])
        token = checked_token
        log_requests if options[:log]
        Server::Launcher.prepare
        Terminal.note("loading #{models.keys.join(", ")} ...") unless options[:lazy]
        Server::Launcher.new(server(models, token), **options.slice(:host, :port, :workers)).run
      end

      private

      def server(models, token)
        Server.new(models: models, token: token, lazy: options[:lazy] || false,
                   **options.slice(:device, :cors, :storage, :adapters, *LIMITS))
      end

      def log_requests
        Candle.configure_logging do |config|
          config.level = Logger::INFO
          config.formatter = ->(_, _, _, message) { "#{message}\n" }
        end
      end
    end
  end
end
