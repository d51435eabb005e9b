# frozen_string_literal: true

require "socket"

module Candle
  class Server
    # The client's end of a request, where the web server shows its socket.
    #
    # A client that has ended its side of the connection may have gone, or may only have nothing more to say and read
    # on (`shutdown`). Only writing tells: to `100 Continue`, which clients of HTTP/1.1 skip, the machine of a client
    # that has gone answers with a reset.
    #
    # @api private
    class Connection
      # Linux gathers small writes while this option of TCP is set, as Puma sets it: up to 200 ms per token.
      CORK = 3
      # What is written to a client that has ended its side, and how many seconds later again.
      PROBE = "HTTP/1.1 100 Continue\r\n\r\n"
      PAUSE = 5.0
      # How long the answer of a machine nearby is waited for, in seconds, and how often.
      NEARBY = 0.002
      TRIES = 5
      private_constant :CORK, :PROBE, :PAUSE, :NEARBY, :TRIES

      # @param env [Hash] of Rack
      def initialize(env)
        socket = env["puma.socket"]
        @socket = socket.respond_to?(:to_io) ? socket.to_io : nil
        # Bytes between those of TLS would break it.
        @plain = @socket.equal?(socket)
        @talks = @plain && env["HTTP_VERSION"] != "HTTP/1.0" && env["SERVER_PROTOCOL"] != "HTTP/1.0"
      end

      # @return [Boolean] whether nobody reads an answer any more
      def gone?
        return false unless @socket
        return true if @socket.closed?

        ended? && !reads?
      rescue SystemCallError, IOError
        true
      rescue NoMethodError
        @socket = nil
        false
      end

      # Whether the client has gone already, before its request is looked at. Where it has ended its side, the answer of
      # its machine is waited for, as long as that takes nearby.
      #
      # @return [Boolean]
      def left?
        return false unless @talks && @socket.is_a?(TCPSocket) && ended?

        TRIES.times do
          return true if gone?

          sleep(NEARBY)
        end
        gone?
      rescue SystemCallError, IOError
        true
      end

      # Lets each write leave at once, and asks the client nothing more: the answer has begun.
      #
      # @return [void]
      def immediate
        @talks = false
        return unless @socket.is_a?(TCPSocket) && RUBY_PLATFORM.include?("linux")

        @socket.setsockopt(Socket::IPPROTO_TCP, CORK, 0)
      rescue SystemCallError, IOError
        nil
      end

      private

      # Whether the client will send nothing more.
      def ended?
        # Ruby says nil from 3.3 on.
        ["", nil].include?(@socket.recv_nonblock(1, Socket::MSG_PEEK, exception: false))
      end

      # Whether a client that has ended its side still reads, as far as is known.
      def reads?
        return false unless @plain

        # Raises once the client's machine has sent a reset; sockets of UNIX know it without.
        @socket.sendmsg("")
        probe if @socket.is_a?(TCPSocket)
        true
      end

      def probe
        now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        return if @next_probe && now < @next_probe

        # A client of HTTP/1.0 takes no probes: keepalive finds one that has gone, a minute later.
        @talks ? @socket.write_nonblock(PROBE, exception: false) : keep_alive
        @next_probe = now + PAUSE
      end

      def keep_alive
        @socket.setsockopt(:SOCKET, :KEEPALIVE, true)
        @socket.setsockopt(:TCP, :KEEPIDLE, PAUSE.to_i) if Socket.const_defined?(:TCP_KEEPIDLE)
        @socket.setsockopt(:TCP, :KEEPINTVL, PAUSE.to_i) if Socket.const_defined?(:TCP_KEEPINTVL)
      end
    end
  end
end
