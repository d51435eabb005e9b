# frozen_string_literal: true

require "io/wait"
require "json"
require "open3"
require "rbconfig"
require_relative "attack/patience"

module Tasks
  # Files, templates, schemas and arguments made to break the gem, in processes of their own. Input number n of a kind
  # and a seed is always the same, so what is found can be found again.
  class Attack
    CHILD = File.expand_path("attack/child.rb", __dir__)
    LIB = File.expand_path("../../lib", __dir__)
    KINDS = %w[safetensors quantized quantizer gguf torch tokenizer config modules image vision pages audio seq2seq
               index lock template schema regex grammar arguments server fields worker interrupts forks compaction
               closing preemption hub saves appends outliers states].freeze
    # An input may take this many seconds, as {Patience} counts them, and make a process this much larger, in kilobytes.
    MOST_SECONDS = 30
    MOST_GROWTH = 1 << 20
    # What a process of the attack may address; one that is lied to about sizes must not get them.
    MOST_ADDRESSES = 8 << 30
    # Numbers that a process holds unanswered.
    MOST_AHEAD = 64

    Finding = Struct.new(:kind, :seed, :number, :problem, :detail) do
      def to_s = "#{kind} #{number} (seed #{seed}): #{problem}: #{detail}"
    end

    attr_reader :inputs, :findings

    def initialize(seed: 1, kinds: KINDS)
      @seed = seed
      @kinds = kinds
      @inputs = Hash.new(0)
      @findings = []
    end

    # @param count [Integer] inputs of each kind
    # @param seconds [Numeric, nil] ends earlier, between two inputs
    # @return [self]
    def run(count:, seconds: nil)
      deadline = now + seconds if seconds
      @kinds.each_with_index do |kind, index|
        share = deadline && (now + ((deadline - now) / (@kinds.size - index)))
        numbers = (0...count).to_a
        numbers = attack(kind, numbers, share) until numbers.empty?
      end
      self
    end

    # @return [String] one line per finding, then the counts
    def report
      names = ["crash", "hang", "blow-up", "unclear error"]
      counts = names.map { |name| "#{name} #{findings.count { |finding| finding.problem == name }}" }
      [*findings, "#{inputs.values.sum} inputs (#{inputs.map { |kind, count| "#{kind} #{count}" }.join(", ")}): " +
        counts.join(", ")].join("\n")
    end

    private

    # Runs a process until it has done all, or one of them ends it.
    #
    # @return [Array<Integer>] the numbers that are left
    def attack(kind, numbers, deadline)
      limits = { rlimit_as: MOST_ADDRESSES, rlimit_core: 0 }
      command = [RbConfig.ruby, "-I#{LIB}", CHILD, kind, @seed.to_s]
      Open3.popen2(*command, err: File::NULL, **limits) do |input, output, process|
        began = now
        answered = 0
        given = []
        loop do
          numbers = [] if deadline && now > deadline
          give(input, given, numbers, ahead(answered, now - began))
          break if given.empty?

          @inputs[kind] += 1
          number = given.shift
          return given + numbers unless answered?(kind, number, output, process)

          answered += 1
        end
        input.close
      end
      []
    end

    # How many numbers a process is given before it answers: what takes it half a second, so that it need not wait for
    # this one to be run.
    def ahead(answered, seconds) = (answered * 0.5 / seconds).ceil.clamp(1, MOST_AHEAD)

    def give(input, given, numbers, count)
      more = numbers.shift([count - given.size, 0].max)
      given.concat(more)
      input.write(more.map { |number| "#{number}\n" }.join)
      input.flush
    rescue Errno::EPIPE
      nil # Its answers say where it ended.
    end

    # @return [Boolean] whether the process can go on
    def answered?(kind, number, output, process)
      patience = Patience.new(MOST_SECONDS, process.pid)
      line = patience.wait { |seconds| output.wait_readable(seconds) } && output.gets
      return judge(kind, number, JSON.parse(line)) if line

      if process.join(0.2)
        found(kind, number, "crash", process.value.inspect)
      else
        Process.kill(:KILL, process.pid)
        found(kind, number, "hang", "more than #{MOST_SECONDS} seconds")
      end
      false
    end

    def judge(kind, number, answer)
      found(kind, number, "unclear error", answer["unclear"]) if answer["unclear"]
      return true unless answer["growth"] > MOST_GROWTH

      found(kind, number, "blow-up", "#{answer["growth"] / 1024} MiB")
      false
    end

    def found(kind, number, problem, detail)
      @findings << Finding.new(kind, @seed, number, problem, detail)
    end

    def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end
end
