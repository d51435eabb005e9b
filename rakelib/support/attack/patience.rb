# frozen_string_literal: true

# How long processes may still take. What they wait for a processor while others have it does not count, nor what the
# one who waits is kept from looking, so that a busy machine is not taken for a call that hangs; ten times as long is
# too long in any case.
class Patience
  MOST = 10

  # @param seconds [Numeric]
  # @param processes [Array<Integer>] their ids
  def initialize(seconds, *processes)
    @seconds = seconds
    @processes = processes
    @passed = @counted = 0.0
    @delays = delays
  end

  # Calls the block, with how many seconds it may take, until it answers.
  #
  # @return [Object, nil] the answer, nil where there was none in time
  def wait
    step = [@seconds / 10.0, 1.0].min
    until @counted > @seconds || @passed > @seconds * MOST
      began = now
      answer = yield step
      return answer if answer

      count([now - began, 2 * step].min)
    end
  end

  private

  def count(seconds)
    before = @delays
    @delays = delays
    # A thread that ended meanwhile takes nothing back.
    waited = @delays.sum { |thread, delay| delay - before.fetch(thread, 0) }
    @passed += seconds
    @counted += [seconds - waited, 0].max
  end

  # @return [Hash{String => Float}] the seconds that each of their threads wanted to run and could not
  def delays
    files = @processes.flat_map { |id| Dir["/proc/#{id}/task/*/schedstat"] }
    files.to_h { |path| [path, delay(path)] }
  end

  def delay(path)
    File.read(path).split.fetch(1, 0).to_i / 1e9
  rescue SystemCallError
    @delays&.fetch(path, 0) || 0
  end

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
end
