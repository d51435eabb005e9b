# frozen_string_literal: true

require "openssl"
require "uri"

module Candle
  class Server
    # Who may ask. With a token: who has it. Without one: this machine, and no web page of another site in a browser
    # of this machine.
    #
    # @api private
    class Access
      LOOPBACK = /\A(127(\.\d+){3}|::1|::ffff:127(\.\d+){3}|localhost)\z/i
      # Readable without a token: whether the server lives, and the page that asks for the token.
      OPEN = ["GET /health", "GET /ready", "GET /", "HEAD /", "HEAD /health"].freeze
      # The headers that pages of other sites may send.
      ALLOWED = %w[authorization x-api-key content-type x-request-id traceparent anthropic-version anthropic-beta
                   anthropic-dangerous-direct-browser-access].freeze
      private_constant :LOOPBACK, :OPEN, :ALLOWED

      # @param host [String]
      # @return [Boolean] whether only this machine reaches it
      def self.loopback?(host)
        host.to_s.delete("[]").match?(LOOPBACK)
      end

      # @param token [String, nil]
      # @param cors [String, Array<String>, nil] origins whose pages may ask; `"*"` is all
      # @param allow_remote [Boolean] whether other machines may ask without a token
      def initialize(token: nil, cors: nil, allow_remote: false)
        raise ArgumentError, "token must not be empty" if token&.strip&.empty?

        @digest = token && digest(token)
        @origins = Array(cors)
        @allow_remote = allow_remote
      end

      # @param request [Request]
      # @return [void]
      # @raise [Problem] 401 or 403
      def check(request)
        raise forbidden("the page that asks is of another site") if foreign_page?(request)
        return if OPEN.include?("#{request.verb} #{request.path}")

        @digest ? check_token(request) : check_place(request)
      end

      # @param request [Request]
      # @return [Hash{String => String}] the headers that let pages of other sites ask, where they may
      def headers(request)
        origin = request.header("Origin")
        return {} unless origin && (@origins.include?("*") || @origins.include?(origin))

        { "access-control-allow-origin" => origin, "vary" => "origin",
          "access-control-allow-methods" => "GET, POST, DELETE",
          "access-control-allow-headers" => ALLOWED.join(", ") }
      end

      private

      # Digests have one length, so that the comparison tells nothing of the token's.
      def check_token(request)
        return if request.tokens.any? { |token| OpenSSL.fixed_length_secure_compare(digest(token), @digest) }

        raise Problem.new(401, "invalid_token", "a bearer token is needed that this server knows",
                          headers: { "www-authenticate" => "Bearer" })
      end

      def check_place(request)
        return if @allow_remote

        address = request.env["REMOTE_ADDR"].to_s
        unless address.empty? || self.class.loopback?(address)
          raise forbidden("without a token the server answers this machine only")
        end
        # A name that someone else lets point to this machine would bring his pages here.
        return if self.class.loopback?(place(request).first)

        raise forbidden("without a token the server answers to the name localhost only")
      end

      # @return [Array(String, Integer)] the name by which the client calls this server, and its port if that is said
      def place(request)
        given = request.env["HTTP_HOST"]&.scrub || [request.env["SERVER_NAME"] || "localhost",
                                                    request.env["SERVER_PORT"]].compact.join(":")
        name, port = given.match(/\A(.*?)(?::(\d+))?\z/m).captures
        [name.delete("[]").downcase, port&.to_i]
      end

      # Whether a page asks that is not of this server: a site is a name and a port. A port that is not said is the
      # usual one of the page's scheme, whatever the scheme between a proxy and this server is.
      def foreign_page?(request)
        origin = request.header("Origin")
        return false if origin.nil? || headers(request).any?

        address = URI.parse(origin)
        return true unless address.host

        name, port = place(request)
        address.host.delete("[]").downcase != name || address.port != (port || address.default_port)
      rescue URI::InvalidURIError
        true
      end

      def forbidden(reason)
        Problem.new(403, "forbidden", reason)
      end

      def digest(token)
        OpenSSL::Digest.digest("SHA256", token)
      end
    end
  end
end
