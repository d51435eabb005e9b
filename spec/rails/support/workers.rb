# frozen_string_literal: true

require "etc"
require "rbconfig"

# Processes of Sidekiq's that take jobs of Candle::Jobs.
class Workers
  SCRIPT = File.join(__dir__, "worker.rb")

  # @param environment [Hash{String => String}] as worker.rb reads it
  def initialize(environment)
    @environment = environment
    @processes = {}
  end

  # @return [Array<Integer>] process ids, oldest first
  def ids
    @processes.keys
  end

  # Starts some, and waits until they take jobs.
  def start(count)
    Array.new(count) { launch }.each { |reader| wait_for_ready(reader) }
  end

  # Starts one without waiting for it.
  def launch
    reader, writer = IO.pipe
    id = Process.spawn(@environment, RbConfig.ruby, SCRIPT, in: File::NULL, out: writer, err: File::NULL)
    writer.close
    @processes[id] = reader
  end

  # @return [Float] what they have computed since their start, on Linux
  def cpu_seconds
    ticks = ids.sum { |id| File.read("/proc/#{id}/stat").rpartition(")").last.split[11, 2].sum(&:to_i) }
    ticks.fdiv(Etc.sysconf(Etc::SC_CLK_TCK))
  end

  # @return [void]
  def kill(id, signal = "KILL")
    Process.kill(signal, id)
    Process.wait(id)
    @processes.delete(id).close
  end

  def stop
    Process.kill("TERM", *ids) if ids.any?
    ids.each { |id| Process.wait(id) && @processes.delete(id).close }
  end

  private

  def wait_for_ready(reader)
    lines = []
    until lines.last == "ready\n"
      lines << reader.gets
      raise "a worker did not start: #{lines.join}" if lines.last.nil?
    end
  end
end
