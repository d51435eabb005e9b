# frozen_string_literal: true

require "English"
require "io/wait"
require_relative "../../rakelib/support/build"

# Runs the stages of bin/test one after the other, all of them even when one
# fails, and sums what they counted.
class TestSuite
  STAGES = {
    "format" => "rake cargo:format",
    "clippy" => "rake cargo:clippy",
    "engine" => "rake cargo:test",
    "metal" => "rake metal:soft metal:features metal:audit",
    "darwin" => "rake metal:darwin",
    "arm" => "rake arm:emulated",
    "compile" => "rake compile",
    "specs" => "rspec",
    "rails" => "rake rails:spec",
    "gc_stress" => "rake spec:gc_stress",
    "rubocop" => "rubocop",
    "doc_coverage" => "rake doc:coverage",
    "doc_examples" => "rake doc:examples",
    "signatures" => "rake signatures",
    "native_gem" => "rake --quiet package:check"
  }.freeze

  CARGO = /^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored/
  RSPEC = /^(\d+) examples?, (\d+) failures?(?:, (\d+) pending)?/

  # Lines by which a failure is recognized: an example's, a test's, a compiler's.
  FAILURE = %r{^(?:rspec \./|test .* FAILED$|error(?:\[E\d+\])?:|thread '.*' panicked|rake aborted!|\S+: E: )}
  private_constant :FAILURE

  # The end of a failed stage's output that is shown again.
  TAIL = 15
  private_constant :TAIL

  # Seconds after which a stage that prints nothing is taken to hang. Cargo says
  # nothing for ten minutes while it builds the engine's tests on two cores.
  SILENCE = 1500
  private_constant :SILENCE

  # Seconds that a process has to say where it hangs.
  LAST_WORDS = 10
  private_constant :LAST_WORDS

  # Nothing was printed for too long.
  Silence = Class.new(StandardError)
  private_constant :Silence

  Result = Struct.new(:name, :passed, :failed, :skipped, :seconds, :evidence)

  def initialize(names, stages: STAGES, silence: SILENCE)
    unknown = names - stages.keys
    abort "unknown stage #{unknown.join(", ")}; known: #{stages.keys.join(" ")}" if unknown.any?
    @stages = names.empty? ? stages : stages.slice(*names)
    @silence = silence
  end

  # @return [Boolean] whether nothing failed
  def run
    Tasks::Build.export
    results = @stages.map { |name, command| run_stage(name, command) }
    report(results)
    results.sum(&:failed).zero?
  end

  private

  def run_stage(name, command)
    puts "", "== #{name}: #{command}"
    started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    output, success = execute(command)
    seconds = Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
    counts = count(output, success)
    Result.new(name, *counts, seconds, counts[1].zero? ? [] : evidence(output))
  end

  # Shows the output while it comes and keeps it for counting.
  def execute(command)
    output = +""
    IO.popen(command, err: %i[child out], pgroup: true) do |pipe|
      show(pipe, output, @silence)
    rescue Interrupt
      Process.kill(:INT, -pipe.pid)
      raise
    rescue Silence
      end_hanging(pipe, output)
    end
    [output.scrub, $CHILD_STATUS.success?]
  end

  # @raise [Silence] when nothing comes for so long
  def show(pipe, output, silence)
    loop do
      raise Silence unless pipe.wait_readable(silence)

      text = pipe.readpartial(1 << 16)
      $stdout.write(text)
      $stdout.flush
      output << text
    end
  rescue EOFError
    output
  end

  # Says which processes run and, where they know what SIGQUIT asks, what they do.
  def end_hanging(pipe, output)
    processes = `ps -A -o pgid= -o pid= -o etime= -o args=`.lines.select { |line| line.to_i == pipe.pid }
    report = "\nerror: nothing was printed for #{@silence} seconds; still running:\n#{processes.join}"
    output << report
    puts report
    Process.kill(:QUIT, -pipe.pid)
    show(pipe, output, LAST_WORDS)
  rescue Silence
    Process.kill(:KILL, -pipe.pid)
  end

  # @return [Array<Integer>] passed, failed, skipped; a stage that counts
  #   nothing is one check
  def count(output, success)
    rows = output.scan(CARGO).map { |row| row.map(&:to_i) }
    output.scan(RSPEC) do |row|
      all, bad, left = row.map(&:to_i)
      rows << [all - bad - left, bad, left]
    end
    passed, failed, skipped = rows.empty? ? [0, 0, 0] : rows.transpose.map(&:sum)
    passed = 1 if success && rows.empty?
    failed = 1 if !success && failed.zero?
    [passed, failed, skipped]
  end

  # What a reader of a long log needs first.
  def evidence(output)
    lines = output.lines(chomp: true)
    (lines.grep(FAILURE) + lines.last(TAIL)).uniq
  end

  def report(results)
    results.reject { |result| result.evidence.empty? }.each do |result|
      puts "", "== #{result.name} failed:", *result.evidence
    end
    puts ""
    results.each do |result|
      puts format("%<name>-14s %<seconds>7.1f s  %<passed>5d passed %<failed>5d failed", result.to_h)
    end
    passed, failed, skipped = %i[passed failed skipped].map { |field| results.sum(&field) }
    puts "", "#{passed} passed, #{failed} failed#{", #{skipped} skipped" if skipped.positive?}"
  end
end

exit(TestSuite.new(ARGV).run) if $PROGRAM_NAME == __FILE__
