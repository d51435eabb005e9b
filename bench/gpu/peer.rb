# frozen_string_literal: true

require "json"

module GpuBench
  # PyTorch in a process of its own, asked by JSON lines. Where it can't be run, answers are empty and the reason is
  # printed once.
  class Peer
    SCRIPT = File.expand_path("peers.py", __dir__)

    def initialize(python, device)
      @command = [python, "-u", SCRIPT, device]
    end

    # @return [Hash] the answer, with Symbol keys; empty after a failure
    def ask(job, **request)
      pipe.puts(JSON.generate(request.merge(job: job)))
      line = pipe.gets or raise EOFError, "#{@command.first} ended"
      answer = JSON.parse(line, symbolize_names: true)
      warn "PyTorch, #{job}: #{answer[:error]}" if answer[:error]
      answer
    rescue SystemCallError, IOError => e
      warn "PyTorch can't be asked: #{e.message}" unless @failed
      @failed = true
      {}
    end

    # Ends the process, and with it gives its GPU memory back.
    def stop
      @pipe&.close
      @pipe = nil
    end

    private

    def pipe
      @pipe ||= IO.popen(@command, "r+")
    end
  end
end
