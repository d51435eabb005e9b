# frozen_string_literal: true

require "json"

module Candle
  class CLI
    # What commands share.
    #
    # @api private
    class Verb
      # @param options [Hash] as Thor read them
      def initialize(options)
        @options = options.to_h.transform_keys(&:to_sym)
      end

      private

      attr_reader :options

      def load_model(kind, source)
        Terminal.note("loading #{source} ...")
        layers = kind == :llm ? layers_settings : {}
        ModelKind.class_for(kind).from_pretrained(source, device: options[:device], **layers)
      end

      # @return [Hash] where the layers of a language model go, as {LLM.from_pretrained} takes it
      def layers_settings
        case layers = options[:gpu_layers]
        when nil then {}
        when "auto" then { device_map: :auto }
        when /\A\d{1,9}\z/ then { gpu_layers: Integer(layers, 10) }
        else raise ArgumentError, "--gpu-layers takes a number or auto, not #{layers.inspect}"
        end
      end

      # @return [Symbol] what a model is for, where that is one of the kinds; the first of them otherwise
      def kind_of(source, *kinds)
        found = ModelKind.of(source)
        kinds.include?(found) ? found : kinds.first
      rescue UnsupportedModelError
        kinds.first
      end

      # @return [String, nil] the token of a server
      # @raise [ArgumentError] when other machines could reach it and there is none
      def checked_token
        token = options[:token] || ENV.fetch("RED_CANDLE_TOKEN", nil)
        return token if token || Server::Access.loopback?(options[:host])

        raise ArgumentError, "other machines could reach #{options[:host]}: set a token with --token or " \
                             "RED_CANDLE_TOKEN"
      end

      # One value as JSON, or the block for people.
      def show(value)
        options[:json] ? puts(JSON.generate(value)) : yield
      end
    end
  end
end
