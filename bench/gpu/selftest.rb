# frozen_string_literal: true

require "open3"

# Runs kernels_selftest with a process for each kernel and type of blocks, several at once, so that NVRTC's work is
# spread over the processor's cores: ruby bench/gpu/selftest.rb PROGRAM [--device NAME] [--at-once COUNT] [KERNEL ...]
module GpuSelftest
  module_function

  # @return [Boolean] whether all cases passed
  def run(arguments)
    program = arguments.shift || abort("which kernels_selftest?")
    device = option(arguments, "--device") || "cuda"
    at_once = Integer(option(arguments, "--at-once") || 12)
    names = arguments.empty? ? known(program) : arguments.map(&:split)
    found = in_parallel(names, at_once) { |name| one(program, device, name) }
    sum_up(found)
  end

  def sum_up(found)
    found.each { |name, output, passed| report(name.join(" "), output, passed) }
    cases = found.sum { |_, output, _| output[/(\d+) cases/, 1].to_i }
    failed = found.reject(&:last).map { |name, *| name.join(" ") }
    puts "#{found.size} kernels, #{cases} cases, failed: #{failed.empty? ? "none" : failed.join(", ")}"
    failed.empty?
  end

  def option(arguments, name)
    at = arguments.index(name)
    at && arguments.slice!(at, 2).last
  end

  # Its usage lists them; behind "blocks" are types of blocks, which go with it.
  def known(program)
    _, usage, = Open3.capture3(program, "--no-such-option")
    names = usage[/^kernels: (.*)$/, 1].to_s.split(", ")
    kernels, formats = names.partition.with_index { |_, index| index < names.index("blocks").to_i }
    kernels.map { |name| [name] } + formats.drop(1).map { |name| ["blocks", name] }
  end

  def one(program, device, name)
    output, status = Open3.capture2e("timeout", "300", program, "--device", device, *name)
    [name, output, status.success?]
  end

  def in_parallel(names, at_once)
    waiting = names.each_with_index.to_a
    found = Array.new(names.size)
    workers = Array.new(at_once) do
      Thread.new do
        while (name, index = waiting.shift)
          found[index] = yield name
        end
      end
    end
    workers.each(&:join)
    found
  end

  def report(name, output, passed)
    lines = output.lines(chomp: true)
    puts "#{name}: #{passed ? "passed" : "FAILED"}"
    puts lines.first(30) unless passed
  end
end

exit(GpuSelftest.run(ARGV.dup)) if $PROGRAM_NAME == __FILE__
