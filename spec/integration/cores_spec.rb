# frozen_string_literal: true

require "etc"
require "fileutils"

# What calls cost where processors are few, shared or limited, measured as processor time: other programs change it
# little.
RSpec.describe "Cores" do
  # Computes the same texts a few times.
  work = <<~RUBY
    model = Candle::EmbeddingModel.from_pretrained(#{TinyModels.path("bert-sentence").dump}, device: "cpu")
    decoder = Candle::LLM.from_pretrained(#{TinyModels.path("decoders/llama").dump}, device: "cpu")
    texts = Array.new(16) { |at| "the quick brown fox jumps over the lazy dog " * (at % 4 + 1) }
    processor = -> { Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) }
    call = -> { [model.embed(texts).to_a, decoder.generate("the quick", temperature: 0, max_length: 40)] }
    call.call
  RUBY
  # Says what the calls took and what came of them.
  measured = <<~RUBY
    #{work}
    before = processor.call
    results = Array.new(12) { call.call }
    puts processor.call - before, results.uniq.size, results.first.inspect
  RUBY

  # @return [Array(Float, String)] seconds of processor time, and the results
  def read(output, errors, status)
    expect(status).to be_success, errors
    cost, kinds, results = output.lines(chomp: true)
    expect(kinds).to eq("1")
    [cost.to_f, results]
  end

  def limited(*prefix, script, threads)
    environment = { "CANDLE_NUM_THREADS" => threads&.to_s, "RAYON_NUM_THREADS" => nil }
    Open3.capture3(environment, *prefix, *ruby_command(script))
  end

  it "are shared by two processes without waste, and give each the same bits as alone" do
    threads = [2, Etc.nprocessors].max
    run = -> { read(*limited(measured, threads)) }
    alone = Array.new(2) { run.call }.min_by(&:first)
    together = Array.new(2) { Thread.new(&run) }.map(&:value)
    expect(together.map(&:last)).to all(eq(alone.last))
    # Threads that spin for each other would take many times as much.
    expect(together.sum(&:first)).to be < (2 * 3 * alone.first) + 0.5
  end

  describe "limited by a cpuset", if: system("which taskset", out: File::NULL, err: File::NULL) do
    let(:one) { %w[taskset --cpu-list 0] }

    it "are as many threads as processors" do
      script = "#{work}\nputs Candle.num_threads, Candle::Utils.get_num_threads"
      output, errors, status = limited(*one, script, nil)
      expect(status).to be_success, errors
      expect(output.split).to eq(%w[1 1])
    end

    it "serve two threads at the cost of one, with the same bits" do
      single = read(*limited(*one, measured, 1))
      pair = Array.new(2) { read(*limited(*one, measured, 2)) }.min_by(&:first)
      expect(pair.last).to eq(single.last)
      expect(pair.first).to be < (3 * single.first) + 0.5
    end
  end

  # Both kinds of control groups, where this user may make one.
  groups = { "/sys/fs/cgroup/cpu" => { "cpu.cfs_period_us" => "100000", "cpu.cfs_quota_us" => "100000" },
             "/sys/fs/cgroup" => { "cpu.max" => "100000 100000" } }
  root, limits = groups.find do |folder, files|
    probe = File.join(folder, "red-candle-probe-#{Process.pid}")
    Dir.mkdir(probe)
    files.keys.all? { |name| File.writable?(File.join(probe, name)) }
  rescue SystemCallError
    false
  ensure
    Dir.rmdir(probe) if Dir.exist?(probe)
  end
  it "are as many threads as a control group has processors", if: root do
    folder = File.join(root, "red-candle-#{Process.pid}")
    Dir.mkdir(folder)
    limits.each { |name, value| File.write(File.join(folder, name), value) }
    join = ["sh", "-c", "echo $$ > #{folder}/cgroup.procs && exec \"$@\"", "sh"]
    output, errors, status = limited(*join, "puts Candle.num_threads", nil)
    expect(status).to be_success, errors
    expect(output.to_i).to eq(1)
  ensure
    Dir.rmdir(folder)
  end

  it "stop spinning within 200 microseconds after the last call" do
    threads = [2, Etc.nprocessors].max
    script = <<~RUBY
      #{work}
      # The threads but Ruby's own, by their processor time in nanoseconds.
      spent = lambda do
        Dir["/proc/self/task/*/schedstat"].to_h { |file| [file[/\\d+/], File.read(file).to_i] }
      end
      GC.disable
      5.times do
        call.call
        before = spent.call
        sleep 1
        puts spent.call.except(Process.pid.to_s).map { |id, time| [id, time - before.fetch(id, 0)].join(" ") }
      end
    RUBY
    output, errors, status = run_ruby(script, { "CANDLE_NUM_THREADS" => threads.to_s })
    expect(status).to be_success, errors
    spun = output.lines.map { |line| line.split.map(&:to_i) }.group_by(&:first)
    expect(spun.size).to be >= threads
    # The rest is what going to sleep costs. A busy machine adds to some rounds.
    expect(spun.values.map { |rounds| rounds.map(&:last).min }.max).to be < 600_000
  end
end
