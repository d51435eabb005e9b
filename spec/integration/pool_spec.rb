# frozen_string_literal: true

require "timeout"

RSpec.describe "The pool of threads" do
  it "lets a call that waits for a thread be ended by Timeout and Thread#raise" do
    threads = Candle.num_threads + 1
    long = Array.new(threads) { Thread.new { Candle::SelfTest.work(60.0) } }
    sleep 0.3
    elapsed = seconds { expect { Timeout.timeout(0.1) { Candle::SelfTest.work(0.0) } }.to raise_error(Timeout::Error) }
    expect(elapsed).to be < 0.3
    waiting = Thread.new { Candle::SelfTest.work(0.0) }
    waiting.report_on_exception = false
    sleep 0.1
    waiting.raise(ArgumentError, "enough")
    expect { waiting.join }.to raise_error(ArgumentError, "enough")
  ensure
    long&.each { |thread| thread.kill.join }
    expect(Candle::SelfTest.work(0.0)).to be_an(Integer)
  end

  it "reads no file while a model computes", if: File.readable?("/proc/self/io") do
    output, errors, = run_ruby(<<~RUBY)
      model = Candle::EmbeddingModel.from_pretrained(#{TinyModels.path("bert-sentence").dump}, device: "cpu")
      embed = -> { model.embed("the quick brown fox " * 40) }
      reads = -> { File.read("/proc/self/io")[/syscr: (\\d+)/, 1].to_i }
      embed.call
      before = reads.call
      100.times { embed.call }
      puts reads.call - before
    RUBY
    # Reading the count takes some itself.
    expect(output.to_i).to be_between(1, 20), errors
  end

  it "has no more threads after many changes of their number", if: File.directory?("/proc/self/task") do
    script = <<~RUBY
      count = -> { Dir.children("/proc/self/task").size }
      change = lambda do |threads|
        Candle.num_threads = threads
        Candle::SelfTest.work(0.0)
      end
      change.call(3)
      before = count.call
      200.times { |turn| change.call(2 + turn % 3) }
      change.call(3)
      20.times { count.call > before + 1 ? sleep(0.1) : break }
      puts count.call - before
    RUBY
    output, errors, status = run_ruby(script)
    expect(status).to be_success, errors
    expect(output.to_i).to be <= 1
  end
end
