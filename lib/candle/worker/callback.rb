# frozen_string_literal: true

require "json"
require "net/http"

module Candle
  class Worker
    # Tells the orchestrator something, and again when it does not listen.
    #
    # @api private
    class Callback
      # Words for "tell nobody", as the whole address or as its host.
      NOBODY = /\A(none|skip|.*\.invalid)?\z/i
      # Seconds between the tries.
      PAUSES = [0.2, 0.5, 1, 2, 4].freeze
      private_constant :NOBODY, :PAUSES

      # @param url [String]
      # @param pauses [Array<Numeric>] seconds between the tries
      # @raise [ArgumentError] when it is not an address of HTTP
      def initialize(url, pauses: PAUSES)
        @pauses = pauses
        return if url.to_s.match?(NOBODY)

        @address = URI.parse(url)
        raise ArgumentError, "the callback must be an http(s) address, not #{url}" unless @address.is_a?(URI::HTTP)

        @address = nil if @address.host.to_s.match?(NOBODY)
      rescue URI::InvalidURIError
        raise ArgumentError, "the callback must be an http(s) address, not #{url}"
      end

      # @param value [Hash]
      # @return [Boolean] whether someone was told
      # @raise [Error] after the last try
      def post(value)
        return false unless @address

        tries = 0
        begin
          deliver(value)
        rescue SystemCallError, SocketError, IOError, Timeout::Error, Error => e
          pause = @pauses[tries]
          raise Error, "the callback at #{@address} does not answer: #{e.message}" unless pause

          tries += 1
          sleep(pause)
          retry
        end
        true
      end

      private

      def deliver(value)
        headers = { "content-type" => "application/json" }
        options = { use_ssl: @address.scheme == "https", open_timeout: 5, read_timeout: 10 }
        answer = Net::HTTP.start(@address.host, @address.port, **options) do |http|
          http.post(@address.request_uri, JSON.generate(value), headers)
        end
        raise Error, "it answered #{answer.code}" unless answer.is_a?(Net::HTTPSuccess)
      end
    end
  end
end
