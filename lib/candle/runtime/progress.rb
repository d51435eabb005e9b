# frozen_string_literal: true

module Candle
  # A bar on the terminal, and nothing where there is none.
  #
  # @api private
  class Progress
    WIDTH = 30
    private_constant :WIDTH

    # @param wanted [Boolean, nil, #call] true for the bar; what answers `call` gets `(done, total)`
    # @param output [IO]
    # @return [Proc, nil] to be called with how many are done, and of how many
    # @raise [ArgumentError] for anything else
    def self.for(wanted, output: $stderr)
      case wanted
      when Proc then wanted
      when nil, false then nil
      when true then output.tty? ? new(output).method(:show).to_proc : nil
      else
        return wanted.method(:call).to_proc if Arguments.answers?(wanted, :call)

        raise ArgumentError, "progress must be true, false or respond to call(done, total), " \
                             "not #{Arguments.shown(wanted)}"
      end
    end

    # @param output [IO]
    def initialize(output)
      @output = output
      @started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    # Draws the bar again.
    #
    # @param done [Integer]
    # @param total [Integer]
    # @return [void]
    def show(done, total)
      return if total.zero?

      seconds = Process.clock_gettime(Process::CLOCK_MONOTONIC) - @started
      filled = done * WIDTH / total
      @output.print("\r", "[", "#" * filled, "." * (WIDTH - filled), "] ", done, "/", total,
                    format(" %<rate>.0f/s", rate: done / [seconds, 0.001].max), done == total ? "\n" : "")
      @output.flush
    end
  end
end
