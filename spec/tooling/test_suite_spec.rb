# frozen_string_literal: true

require_relative "../../bin/support/test_suite"

RSpec.describe TestSuite do
  def run(stages, names = [], options = {})
    passed = nil
    output = capture { passed = described_class.new(names, stages: stages, **options).run }
    [output.lines.last, passed, output]
  end

  def capture
    original = $stdout
    $stdout = StringIO.new
    yield
    $stdout.string
  ensure
    $stdout = original
  end

  def echo(*lines, status: 0)
    "printf '%s\\n' #{lines.map { |line| "'#{line}'" }.join(" ")}; exit #{status}"
  end

  let(:cargo) do
    echo("test result: ok. 7 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s",
         "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s")
  end

  it "sums what cargo and rspec counted, and takes a stage without counts as one check" do
    last, passed, = run("cargo" => cargo, "rspec" => echo("12 examples, 0 failures, 2 pending"), "lint" => echo("fine"))
    expect([last, passed]).to eq(["21 passed, 0 failed, 3 skipped\n", true])
  end

  it "says nothing of skipped checks when there are none" do
    expect(run("rspec" => echo("1 example, 0 failures")).first).to eq("1 passed, 0 failed\n")
  end

  it "goes on after a failure, and fails" do
    last, passed, output = run("rspec" => echo("5 examples, 2 failures", status: 1), "after" => echo("went on"))
    expect([last, passed]).to eq(["4 passed, 2 failed\n", false])
    expect(output).to include("went on")
  end

  it "shows the failures again at the end, after what other stages printed" do
    failing = echo("rspec ./spec/unit/one_spec.rb:7 # One fails", *(0..39).map { |i| "line #{i}" },
                   "3 examples, 1 failure", status: 1)
    end_of_output = run("specs" => failing, "after" => echo("went on")).last.split("went on").last
    expect(end_of_output).to include("specs failed", "one_spec.rb:7", "line 39")
    expect(end_of_output).not_to include("line 3\n")
  end

  it "counts a stage that dies without counting as failed" do
    expect(run("build" => echo("boom", status: 1)).first).to eq("0 passed, 1 failed\n")
    expect(run("specs" => echo("9 examples, 0 failures", status: 1)).first).to eq("9 passed, 1 failed\n")
  end

  it "ends a stage that hangs, says where, and goes on" do
    hanging = %(ruby -e 'trap(:QUIT) { warn "stuck at line 7"; exit! }; puts "begun"; $stdout.flush; sleep')
    last, passed, output = run({ "hanging" => hanging, "after" => echo("went on") }, [], silence: 2)
    expect([last, passed]).to eq(["1 passed, 1 failed\n", false])
    expect(output).to include("begun", "nothing was printed for 2 seconds", "stuck at line 7", "went on")
    expect(output.split("went on").last).to include("hanging failed", "nothing was printed for 2 seconds", "sleep'")
  end

  it "ends what does not listen either, with what it started" do
    deaf = "trap '' QUIT; sleep 40 & sleep 40"
    stub_const("TestSuite::LAST_WORDS", 1)
    started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    expect(run({ "deaf" => deaf }, [], silence: 1)[1]).to be(false)
    expect(Process.clock_gettime(Process::CLOCK_MONOTONIC) - started).to be < 20
  end

  it "runs only the stages it is asked for, and knows their names" do
    stages = { "one" => echo("first"), "two" => echo("second") }
    expect(run(stages, ["two"]).last).not_to include("first")
    expect { run(stages, ["three"]) }.to raise_error(SystemExit).and output(/unknown stage three/).to_stderr
  end
end
