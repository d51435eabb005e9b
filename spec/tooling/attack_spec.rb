# frozen_string_literal: true

require "tmpdir"

require_relative "../../rakelib/support/attack"

# A bounded part of `rake attack`, the same in every run.
RSpec.describe Tasks::Attack, if: File.readable?("/proc/self/status") do
  described_class::KINDS.each do |kind|
    it "breaks nothing by inputs of the kind #{kind}" do
      attack = described_class.new(seed: 20_261_115, kinds: [kind]).run(count: 40, seconds: 20)
      expect(attack.inputs[kind]).to be >= 3
      expect(attack.findings.map(&:to_s)).to eq([]), attack.report
    end
  end

  it "attacks every class that has signatures, or says why not" do
    require_relative "../../rakelib/support/attack/arguments"
    expect(HostileArguments.forgotten).to be_empty
  end

  it "gives methods, of which some save, copies of pictures" do
    require_relative "../../rakelib/support/attack/arguments"
    hostile = HostileArguments.new
    hostile.instance_variable_set(:@random, Random.new(1))
    Dir.mktmpdir do |folder|
      given = Dir.chdir(folder) { Array.new(20) { hostile.send(:picture) } }
      expect(given.grep_v(/\Adata:/).uniq.map { |path| File.dirname(File.realpath(path)) })
        .to eq([File.realpath(folder)] * 2)
    end
  end

  describe Patience do
    # Processes on one processor, the first of them the one that is waited for.
    def on_one_processor(*scripts)
      ids = scripts.map { |script| spawn("taskset", "--cpu-list", "0", RbConfig.ruby, "-e", script) }
      yield ids.first
    ensure
      ids.each { |id| Process.kill(:KILL, id) && Process.wait(id) }
    end

    def patience_with(process)
      started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      described_class.new(1, process).wait { |seconds| sleep(seconds) && nil }
      Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
    end

    it "ends with a process that sleeps, and does not count what one waits for a processor" do
      on_one_processor("sleep") { |process| expect(patience_with(process)).to be_between(1, 2) }
      on_one_processor(*["loop {}"] * 5) { |process| expect(patience_with(process)).to be_between(2.5, 10.5) }
    end

    it "does not count the time in which nobody looked" do
      calls = 0
      described_class.new(1, Process.pid).wait { sleep(0.4) && (calls += 1) && nil }
      expect(calls).to be_between(5, 7)
    end

    it "is over with what the block says" do
      expect(described_class.new(1, Process.pid).wait { |seconds| seconds }).to eq(0.1)
    end
  end

  it "keeps its numbers from what reads the standard input" do
    reader = File.join(Dir.mktmpdir, "reader.rb")
    File.write(reader, "class Inputs; def try_reader(_) = ($stdin.wait_readable(0)&.eof? or raise 'numbers'); end")
    options = ENV.fetch("RUBYOPT", nil)
    ENV["RUBYOPT"] = "#{options} -r#{reader}"
    attack = described_class.new(kinds: ["reader"]).run(count: 3)
    expect(attack.report).to eq("3 inputs (reader 3): crash 0, hang 0, blow-up 0, unclear error 0")
  ensure
    ENV["RUBYOPT"] = options
  end

  it "notices a process that ends, hangs, grows or says too little" do
    stub_const("#{described_class}::CHILD", File.join(Dir.mktmpdir, "child.rb"))
    stub_const("#{described_class}::MOST_SECONDS", 2)
    File.write(described_class::CHILD, <<~RUBY)
      require "json"
      $stdout.sync = true
      $stdin.each_line do |line|
        case Integer(line)
        when 0 then Process.kill(:SEGV, Process.pid)
        when 1 then sleep
        when 2 then puts JSON.generate(growth: 1 << 22)
        when 3 then puts JSON.generate(growth: 0, unclear: "NoMethodError")
        else puts JSON.generate(growth: 0)
        end
      end
    RUBY
    attack = described_class.new(kinds: ["config"]).run(count: 6)
    expect(attack.findings.map { |finding| [finding.number, finding.problem] })
      .to eq([[0, "crash"], [1, "hang"], [2, "blow-up"], [3, "unclear error"]])
    expect(attack.report).to end_with("6 inputs (config 6): crash 1, hang 1, blow-up 1, unclear error 1")
  end
end
