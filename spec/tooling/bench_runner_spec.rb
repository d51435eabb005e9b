# frozen_string_literal: true

require "tmpdir"
require_relative "../../bench/harness/runner"

RSpec.describe Bench::Runner do
  # A worker that answers by a script of one line per operation.
  def worker_script(answers)
    <<~RUBY
      require "json"
      $stdout.sync = true
      $stdin.each_line do |line|
        request = JSON.parse(line)
        File.write(ENV.fetch("LOG"), "\#{ENV.fetch("NAME")} \#{request["op"]}\\n", mode: "a") if request["repeat"]
        #{answers}
        puts JSON.generate(reply)
      end
    RUBY
  end

  def answers(seconds:, result:, debug: false)
    <<~RUBY
      reply = case request["op"]
              when "hello" then { versions: { ENV.fetch("NAME") => "1" }, import_seconds: 0.1,
                                  build: { debug: #{debug} } }
              when "load" then { seconds: 0.5 }
              when "run" then { seconds: #{seconds}, ruby_seconds: 0.01, result: #{result} }
              when "memory" then { peak_bytes: 5_000_000 }
              end
    RUBY
  end

  let(:directory) { Dir.mktmpdir }
  let(:log) { File.join(directory, "log") }
  let(:scripts) do
    { Bench::OURS => answers(seconds: 0.1, result: [1.0, 2.0]), "peer" => answers(seconds: 0.3, result: [1.0, 2.0]) }
  end
  let(:participants) do
    [Bench::OURS, "peer"].map do |name|
      Bench::Participant.new(worker: name, task: "rerank", model: { kind: "reranker", path: "/a", dtype: "f32" },
                             check: { measure: :scores, within: 1e-3 })
    end
  end
  let(:one) do
    Bench::Case.new(name: "rerank", group: "reranking", title: "reranking", unit: "ms", input: "x.json", rounds: 4,
                    participants: participants, target: Bench::Target.new(ratio: 1.3))
  end
  let(:runner) { described_class.new(threads: 2, output: StringIO.new) }

  before do
    allow(Bench::Worker).to receive(:start) do |name, **|
      script = worker_script(scripts.fetch(name))
      Bench::Worker.new(name, ["ruby", "--disable=gems", "-e", script], { "LOG" => log, "NAME" => name })
    end
  end

  after { FileUtils.rm_rf(directory) }

  it "takes medians of rounds in which all take turns" do
    outcome = runner.run([one]).first
    expect(outcome.values_at("status", "best_peer")).to eq(%w[pass peer])
    expect(outcome["ratio"]).to be_within(1e-9).of(3.0)
    expect(outcome.dig("values", Bench::OURS, "samples")).to eq([100.0] * 4)
    rounds = File.readlines(log, chomp: true).map { |line| line.split.first }.drop(2).each_slice(2).to_a
    expect(rounds).to eq([%w[red-candle peer], %w[peer red-candle]] * 2)
    expect(runner.versions).to eq("red-candle" => "1", "peer" => "1")
  end

  it "shows what there is after every case, for runs that are broken off" do
    seen = []
    outcomes = runner.run([one, one]) { |so_far| seen << so_far.size }
    expect(seen).to eq([1, 2])
    expect(outcomes.size).to eq(2)
  end

  it "fails a case whose results differ" do
    scripts["peer"] = answers(seconds: 0.3, result: [1.0, 2.5])
    outcome = runner.run([one]).first
    expect(outcome["status"]).to eq("MISMATCH")
    expect(outcome["comparisons"].first).to include("with" => "peer", "value" => 0.5, "equal" => false)
  end

  it "reports an error in the worker's words, and goes on" do
    scripts["peer"] = 'reply = { error: "KeyError: no such model" }'
    failed, alone = runner.run([one, one.dup.tap { |copy| copy.participants = participants.first(1) }])
    expect(failed.values_at("status", "error")).to eq(["FAILED", "peer: KeyError: no such model"])
    expect(alone["values"].keys).to eq([Bench::OURS])
  end

  it "reports a death, and starts another worker for the next case" do
    scripts["peer"] = <<~RUBY
      grave = ENV.fetch("LOG") + ".grave"
      if request["op"] == "run" && !File.exist?(grave)
        File.write(grave, "")
        warn "Illegal instruction"
        exit! 132
      end
      #{answers(seconds: 0.3, result: [1.0, 2.0])}
    RUBY
    dead, next_one = runner.run([one, one])
    expect(dead.values_at("status", "error")).to eq(["FAILED", "peer died: Illegal instruction"])
    expect(next_one["status"]).to eq("pass")
  end

  it "gives up a worker that does not answer" do
    worker = Bench::Worker.new("peer", ["ruby", "--disable=gems", "-e", "$stdin.read"], {})
    expect { worker.request("hello", patience: 0.05) }.to raise_error(Bench::Worker::Death, /did not answer within/)
    worker.stop
  end

  it "finds the program of the peer that is built here" do
    allow(Tasks::Build).to receive(:target_directory).and_return("/target")
    expect(Bench::Worker.command("candle-transformers")).to eq(["/target/release/examples/candle_transformers_worker"])
    manifest = File.read(File.join(Tasks::Build::ROOT, "ext/engine/Cargo.toml"))
    expect(manifest).to include("name = \"#{Bench::CandleTransformers::EXAMPLE}\"")
    expect(Bench::CandleTransformers.build_command).to include("--release", "--locked", "--example")
  end

  it "refuses a debug build of ours and of a peer" do
    scripts[Bench::OURS] = answers(seconds: 0.1, result: [1.0, 2.0], debug: true)
    expect { runner.run([one]) }.to raise_error(Bench::Machine::DebugBuild, /debug build.*rake compile/)
    scripts[Bench::OURS], scripts["peer"] = [false, true].map do |debug|
      answers(seconds: 0.1, result: [1.0, 2.0], debug: debug)
    end
    other = described_class.new(threads: 2, output: StringIO.new)
    expect { other.run([one]) }.to raise_error(Bench::Machine::DebugBuild)
  end

  it "measures import, load and memory in processes of their own" do
    metrics = %i[import load peak].map { |kind| Bench::Metric.new(kind: kind, title: kind.to_s) }
    fresh = Bench::FreshCase.new(name: "process", group: "memory", input: "x.json", rounds: 2,
                                 participants: participants, metrics: metrics)
    outcomes = runner.run([fresh])
    expect(outcomes.map { |outcome| outcome["values"][Bench::OURS]["median"] }).to eq([100.0, 500.0, 5.0])
    expect(outcomes.map { |outcome| outcome["name"] }).to eq(%w[process_import process_load process_peak])
    expect(Bench::Worker).to have_received(:start).exactly(4).times
  end
end
