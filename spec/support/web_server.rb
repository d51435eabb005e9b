# frozen_string_literal: true

require "net/http"
require "open3"
require "rbconfig"

# `red-candle` in a process of its own, on a port that is free.
class WebServer
  COMMAND = [RbConfig.ruby, "-I#{File.expand_path("../../lib", __dir__)}",
             File.expand_path("../../exe/red-candle", __dir__)].freeze

  attr_reader :base, :pid

  # @yieldparam server [WebServer] while it runs
  def self.run(*arguments, environment: {})
    server = new(arguments, environment)
    yield server
  ensure
    server&.stop
  end

  def initialize(arguments, environment)
    @reader, writer = IO.pipe
    @pid = Process.spawn(environment, *COMMAND, *arguments, "--port", "0", out: writer, err: %i[child out])
    writer.close
    line = @reader.gets.to_s
    @base = line[%r{\Alistening on (http://\S+)}, 1] || raise("the server did not start: #{line}#{@reader.read}")
  end

  # @return [Process::Status] how it ended
  def stop(signal = "TERM")
    return @status if @status

    Process.kill(signal, @pid)
    @status = Process.wait2(@pid).last
    @reader.close
    @status
  end

  def port
    URI(base).port
  end

  def get(path)
    Net::HTTP.get_response(URI(base + path))
  end

  def post(path, body, headers = {})
    Net::HTTP.post(URI(base + path), JSON.generate(body), { "content-type" => "application/json" }.merge(headers))
  end

  # @return [Float] a number of /metrics
  def metric(name)
    get("/metrics").body[/^#{Regexp.escape(name)} (\S+)$/, 1].to_f
  end

  # @return [Integer] bytes of memory that this process alone uses, and its share of what others use too
  def self.proportional_bytes(pid)
    File.read("/proc/#{pid}/smaps_rollup")[/^Pss:\s+(\d+) kB/, 1].to_i * 1024
  end
end
