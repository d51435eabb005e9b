# frozen_string_literal: true

require "json"
require "net/http"

module Candle
  class CLI
    # `red-candle ps`: the models of a server that runs.
    #
    # @api private
    class Running < Verb
      # How long to wait for the server.
      SECONDS = 5
      private_constant :SECONDS

      # @return [void]
      def call
        models = ask.map { |model| facts(model) }
        show({ server: address, models: models }) do
          rows = models.map { |model| [model[:name], model[:kind], model[:bytes] && Terminal.size(model[:bytes])] }
          Terminal.table(rows) if rows.any?
        end
      end

      private

      def address
        host = options[:host].include?(":") ? "[#{options[:host]}]" : options[:host]
        "http://#{host}:#{options[:port]}"
      end

      def ask
        found = get("/api/ps") || get("/v1/models") || {}
        found["models"] || found.fetch("data").map { |model| { "name" => model["id"] } }
      rescue JSON::ParserError, KeyError, TypeError
        raise Error, "#{address} does not answer as red-candle serve does"
      end

      # @return [Hash, nil] nil where the server has no such path
      def get(path)
        request = Net::HTTP::Get.new(path)
        token = options[:token] || ENV.fetch("RED_CANDLE_TOKEN", nil)
        request["Authorization"] = "Bearer #{token}" if token
        response = connect { |http| http.request(request) }
        return JSON.parse(response.body) if response.is_a?(Net::HTTPSuccess)
        return if response.code == "404"

        raise Error, "#{address} answers with status #{response.code}#{": set --token" if response.code == "401"}"
      end

      def connect(&block)
        Net::HTTP.start(options[:host], options[:port], open_timeout: SECONDS, read_timeout: SECONDS, &block)
      rescue SystemCallError, SocketError, Timeout::Error
        raise Error, "no server listens on #{address}: start one with red-candle serve, or say --host and --port"
      end

      def facts(model)
        details = model["details"] || {}
        { name: model["name"], kind: details["kind"] || details["family"], bytes: model["size"] }.compact
      end
    end
  end
end
