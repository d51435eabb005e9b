# frozen_string_literal: true

require "open3"
require "rbconfig"

# Ruby processes of their own, for what would disturb or end this one.
module ChildRuby
  LIB = File.expand_path("../../lib", __dir__)

  # @param within [Numeric, nil] after so many seconds the process is killed
  # @return [Array(String, String, Process::Status)] what the script wrote, and how it ended
  def run_ruby(script, environment = {}, within: nil)
    Open3.popen3(environment, *ruby_command(script)) do |input, output, errors, process|
      input.close
      written = [output, errors].map { |stream| Thread.new { stream.read } }
      Process.kill(:KILL, process.pid) unless process.join(within)
      [*written.map(&:value), process.value]
    end
  end

  # Starts the script, waits for it to print a line, sends the signal.
  #
  # @return [Array(Float, String, Process::Status)] seconds from the signal to the end, the rest of
  #   what it wrote, how it ended
  def signal_ruby(script, signal)
    Open3.popen2e(*ruby_command(script)) do |_stdin, output, process|
      output.gets
      sleep 0.1
      sent = now
      Process.kill(signal, process.pid)
      rest = output.read
      status = process.value
      [now - sent, rest, status]
    end
  end

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

  def seconds
    start = now
    yield
    now - start
  end

  private

  def ruby_command(script)
    [RbConfig.ruby, "-I#{LIB}", "-rcandle", "-e", "$stdout.sync = true\n#{script}"]
  end
end

RSpec.configure { |config| config.include ChildRuby }
