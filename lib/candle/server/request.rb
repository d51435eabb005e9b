# frozen_string_literal: true

require "json"
require "securerandom"
require "uri"

module Candle
  class Server
    # One request of HTTP, read with the limits of the server.
    #
    # @api private
    class Request
      IDENTIFIER = /\A[\w.:-]{1,128}\z/
      TRACE = /\A[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}\z/
      # What every number has that is read as an infinite one.
      LARGE = /\d{300}|\d[eE]\+?\d{2}/
      private_constant :IDENTIFIER, :TRACE, :LARGE

      # @return [Hash] of Rack
      attr_reader :env
      # @return [Connection]
      attr_reader :connection
      # @return [Float] when it must be answered, on the monotonic clock
      attr_reader :deadline
      # @return [Float] when it came, on the monotonic clock
      attr_reader :began

      # @param env [Hash] of Rack
      # @param limits [Limits]
      # @param connection [Connection] the client's end
      def initialize(env, limits, connection: Connection.new(env))
        @env = env
        @limits = limits
        @connection = connection
        @began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        @deadline = @began + limits.seconds
      end

      # @return [String]
      def verb
        env["REQUEST_METHOD"]
      end

      # @return [String] below where the server is mounted, without a slash at the end
      def path
        @path ||= begin
          path = env["PATH_INFO"].to_s.scrub
          path.size > 1 ? path.chomp("/") : path
        end
      end

      # @return [Hash{String => String}] what stands behind the question mark of the path
      def query
        @query ||= URI.decode_www_form(env["QUERY_STRING"].to_s.scrub).to_h
      rescue ArgumentError
        raise Problem.new(400, "invalid_request", "the query of the path is malformed")
      end

      # @param name [String] as in `"X-Request-Id"`
      # @return [String, nil]
      def header(name)
        env["HTTP_#{name.upcase.tr("-", "_")}"]&.scrub
      end

      # @return [String] the client's own, or a new one
      def id
        @id ||= [header("X-Request-Id"), header("X-Correlation-Id")].compact.grep(IDENTIFIER).first || SecureRandom.uuid
      end

      # @return [String, nil] the trace that the request belongs to, by W3C's header
      def trace_id
        header("Traceparent").to_s[TRACE, 1]
      end

      # @return [Hash{String => String}] the headers of an answer that name the request and its trace
      def marks
        marks = { "x-request-id" => id }
        marks["x-correlation-id"] = id if header("X-Correlation-Id")
        marks["traceparent"] = header("Traceparent") if trace_id
        marks
      end

      # @return [Array<String>] the tokens of the headers `Authorization: Bearer` and `X-Api-Key`
      def tokens
        [header("Authorization").to_s[/\ABearer +(\S+)\s*\z/i, 1], header("X-Api-Key")].compact
      end

      # @return [Hash{String => Object}] the body
      # @raise [Problem] 413 when it is too large, 400 when it is not a JSON object
      def json
        @json ||= begin
          text = body
          value = JSON.parse(text, max_nesting: 64)
          raise Problem.new(400, "invalid_json", "the body must be a JSON object") unless value.is_a?(Hash)
          if text.match?(LARGE) && !finite?(value)
            raise Problem.new(400, "invalid_json", "the body has a number that is too large")
          end

          value
        end
      rescue JSON::ParserError, EncodingError
        raise Problem.new(400, "invalid_json", "the body is not valid JSON")
      end

      # @return [Hash{String => Object}, nil] what {#json} has read, nil where nobody has asked for it
      def parsed
        @json
      end

      # @return [Picture, nil] the body, where it is an image instead of JSON
      # @raise [Problem] 413 when it is too large
      def picture
        return @picture if defined?(@picture)

        type = env["CONTENT_TYPE"].to_s.scrub
        image = type.empty? ? Image.like?(bytes) : type.match?(%r{\A(image/|application/octet-stream)}i)
        @picture = image ? Picture.new(bytes) : nil
      end

      # @param name [String] a field of the body
      # @param kinds [Array<Class, Object>] what it may be
      # @param default [Object] when it is absent or null
      # @return [Object]
      # @raise [Problem] 400 for another kind of value, or when it is absent and has no default
      def field(name, *kinds, default: :none)
        value = json[name]
        return value if !value.nil? && kinds.any? { |kind| kind === value } # rubocop:disable Style/CaseEquality
        return default if value.nil? && default != :none

        raise Problem.new(400, "invalid_request", value.nil? ? "#{name} is missing" : "#{name} has the wrong type",
                          param: name)
      end

      # @param name [String] a field of the body
      # @return [Boolean]
      def flag(name, default)
        field(name, true, false, default: default)
      end

      private

      def finite?(value)
        case value
        when Hash then value.each_value.all? { |one| finite?(one) }
        when Array then value.all? { |one| finite?(one) }
        when Float then value.finite?
        else true
        end
      end

      def bytes
        @bytes ||= begin
          limit = @limits.body_bytes
          raise too_large(limit) if env["CONTENT_LENGTH"].to_i > limit

          bytes = env["rack.input"]&.read(limit + 1).to_s.b
          raise too_large(limit) if bytes.bytesize > limit

          bytes
        end
      end

      def body
        text = bytes.dup.force_encoding(Encoding::UTF_8)
        raise Problem.new(400, "invalid_json", "the body is not valid UTF-8") unless text.valid_encoding?

        text
      end

      def too_large(limit)
        Problem.new(413, "body_too_large", "the body is larger than the #{limit} bytes that the server takes")
      end
    end
  end
end
