# frozen_string_literal: true

require "openssl"
require "socket"

# TLS on 127.0.0.1 in front of a server without.
class TlsTunnel
  attr_reader :port, :connections

  # @param behind [Integer] the server's port
  def initialize(key, certificate, behind)
    @behind = behind
    @connections = 0
    @context = OpenSSL::SSL::SSLContext.new
    @context.key = key
    @context.cert = certificate
    @listener = TCPServer.new("127.0.0.1", 0)
    @port = @listener.addr[1]
    @threads = [Thread.new { accept }]
  end

  def stop
    @listener.close
    @threads.each(&:kill)
  end

  private

  def accept
    loop do
      client = @listener.accept
      @connections += 1
      @threads << Thread.new { connect(client) }
    end
  rescue IOError, Errno::EBADF
    nil
  end

  def connect(client)
    secure = OpenSSL::SSL::SSLSocket.new(client, @context).tap(&:accept)
    server = TCPSocket.new("127.0.0.1", @behind)
    back = Thread.new { IO.copy_stream(server, secure) }
    back.report_on_exception = false
    IO.copy_stream(secure, server)
    server.close_write
    back.join
  rescue OpenSSL::SSL::SSLError, SystemCallError, IOError
    nil
  ensure
    [secure, client, server].compact.each(&:close)
  end
end
