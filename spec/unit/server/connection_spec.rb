# frozen_string_literal: true

require "socket"

RSpec.describe Candle::Server::Connection do
  let(:pair) do
    listener = TCPServer.new("127.0.0.1", 0)
    client = TCPSocket.new("127.0.0.1", listener.addr[1])
    [client, listener.accept].tap { listener.close }
  end
  let(:client) { pair.first }
  let(:socket) { pair.last }

  after { pair.each { |end_of_it| end_of_it.close unless end_of_it.closed? } }

  def gone_soon?(connection)
    stop = now + 2
    sleep 0.01 until connection.gone? || now > stop
    connection.gone?
  end

  it "keeps a client that has nothing more to say but reads" do
    connection = described_class.new("puma.socket" => socket, "HTTP_VERSION" => "HTTP/1.1")
    expect(connection).not_to be_gone
    client.close_write
    20.times do
      expect(connection).not_to be_gone
      sleep 0.01
    end
    socket.write("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    socket.close
    expect(client.read).to eq("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
  end

  it "notices a client that has closed, also after it had ended its side" do
    connection = described_class.new("puma.socket" => socket, "HTTP_VERSION" => "HTTP/1.1")
    client.close
    expect(gone_soon?(connection)).to be(true)
    other = TCPServer.open("127.0.0.1", 0) do |listener|
      [TCPSocket.new("127.0.0.1", listener.addr[1]), listener.accept]
    end
    half = described_class.new("puma.socket" => other.last)
    stub_const("#{described_class}::PAUSE", 0.05)
    other.first.close_write
    expect(half).not_to be_gone
    other.first.close
    expect(gone_soon?(half)).to be(true)
  end

  it "knows at once of a client nearby that has left before it was answered" do
    connection = described_class.new("puma.socket" => socket)
    expect(connection).not_to be_left
    client.close_write
    expect(connection).not_to be_left
    other = TCPServer.open("127.0.0.1", 0) do |listener|
      [TCPSocket.new("127.0.0.1", listener.addr[1]), listener.accept]
    end
    other.first.close
    sleep 0.01
    expect(described_class.new("puma.socket" => other.last)).to be_left
    expect(described_class.new({})).not_to be_left
  end

  it "writes nothing to a client of HTTP/1.0, nor into an answer that has begun" do
    [{ "HTTP_VERSION" => "HTTP/1.0" }, { "SERVER_PROTOCOL" => "HTTP/1.0" }, {}].each do |env|
      sockets = TCPServer.open("127.0.0.1", 0) do |listener|
        [TCPSocket.new("127.0.0.1", listener.addr[1]), listener.accept]
      end
      connection = described_class.new(env.merge("puma.socket" => sockets.last))
      connection.immediate if env.empty?
      sockets.first.close_write
      5.times { expect(connection).not_to be_gone }
      expect(sockets.first.read_nonblock(10, exception: false)).to eq(:wait_readable)
      sockets.each(&:close)
    end
  end

  it "notices it of sockets of UNIX without writing" do
    client, socket = UNIXSocket.pair
    connection = described_class.new("puma.socket" => socket)
    client.close_write
    expect(connection).not_to be_gone
    expect(client.read_nonblock(10, exception: false)).to eq(:wait_readable)
    client.close
    expect(connection).to be_gone
  end

  it "takes the end of one side for both where writing would break TLS" do
    wrapped = Struct.new(:to_io).new(socket)
    connection = described_class.new("puma.socket" => wrapped)
    expect(connection).not_to be_gone
    client.close_write
    expect(gone_soon?(connection)).to be(true)
    expect(client.read_nonblock(10, exception: false)).to eq(:wait_readable)
  end
end
