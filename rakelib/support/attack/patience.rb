# frozen_string_literal: true

# How long processes may still take. What they wait for a processor while others have it does not count, so that a busy
# machine is not taken for a call that hangs; ten times as long is too long in any case.
class Patience
  MOST = 10

  # @param seconds [Numeric]
  # @param processes [Array<Integer>] their ids
  def initialize(seconds, *processes)
    @seconds = seconds
    @processes = processes
    @began = now
    @waited = waited
  end

  # Calls the block, with how many seconds it may take, until it answers.
  #
  # @return [Object, nil] the answer, nil where there was none in time
  def wait
    until over?
      answer = yield [@seconds / 10.0, 1.0].min
      return answer if answer
    end
  end

  private

  def over?
    passed = now - @began
    passed > @seconds * MOST || passed - (waited - @waited) > @seconds
  end

  # Seconds that all of their threads wanted to run and could not.
  def waited
    files = @processes.flat_map { |id| Dir["/proc/#{id}/task/*/schedstat"] }
    files.sum { |path| File.read(path).split.fetch(1, 0).to_i } / 1e9
  rescue SystemCallError
    @waited || 0
  end

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
end
