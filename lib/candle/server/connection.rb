# frozen_string_literal: true

require "socket"

module Candle
  class Server
    # The client's end of a request, where the web server shows its socket.
    #
    # @api private
    class Connection
      # Linux gathers small writes while this option of TCP is set, as Puma sets it: up to 200 ms per token.
      CORK = 3
      private_constant :CORK

      # @param env [Hash] of Rack
      def initialize(env)
        socket = env["puma.socket"]
        @socket = socket.respond_to?(:to_io) ? socket.to_io : nil
      end

      # @return [Boolean] whether the client has closed its end
      def gone?
        return false unless @socket
        return true if @socket.closed?

        # Ruby says nil from 3.3 on.
        ["", nil].include?(@socket.recv_nonblock(1, Socket::MSG_PEEK, exception: false))
      rescue SystemCallError, IOError
        true
      rescue NoMethodError
        @socket = nil
        false
      end

      # Lets each write leave at once.
      #
      # @return [void]
      def immediate
        return unless @socket.is_a?(TCPSocket) && RUBY_PLATFORM.include?("linux")

        @socket.setsockopt(Socket::IPPROTO_TCP, CORK, 0)
      rescue SystemCallError, IOError
        nil
      end
    end
  end
end
