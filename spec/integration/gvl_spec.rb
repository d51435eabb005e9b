# frozen_string_literal: true

require "timeout"

# Long native calls leave the other threads running and can be ended from outside.
RSpec.describe "The door off the GVL" do
  # A block of a large f64 product, after which a call looks for an interrupt, takes 0.2 s on a slow processor.
  limit = 0.4
  # Each takes many seconds unless it is ended.
  calls = {
    "native work" => -> { Candle::SelfTest.work(60.0) },
    "a matrix product" => lambda {
      @large ||= Candle::Tensor.ones([6000, 6000], dtype: :f64)
      @large.matmul(@large)
    },
    "the making of a large tensor" => -> { loop { Candle::Tensor.ones([100_000_000], dtype: :f64) } }
  }

  # A busy machine may take its time for seconds. What cannot be ended takes it every time.
  def quickest(limit)
    Array.new(10) do
      elapsed = yield
      return elapsed if elapsed < limit

      elapsed
    end.min
  end

  calls.each do |name, call|
    describe name do
      it "lets other threads go on" do
        steps = 0
        counter = Thread.new { loop { (steps += 1) && sleep(0.001) } }
        worker = Thread.new(&call)
        sleep 0.5
        before = steps
        sleep 0.5
        after = steps
        expect(worker).to be_alive
        expect(after - before).to be > 50
      ensure
        [counter, worker].each { |thread| thread.kill.join }
      end

      it "ends by Timeout in time" do
        elapsed = quickest(0.3 + limit) do
          seconds { expect { Timeout.timeout(0.3) { call.call } }.to raise_error(Timeout::Error) }
        end
        expect(elapsed).to be_between(0.3, 0.3 + limit)
      end

      it "ends by Thread#kill in time" do
        elapsed = quickest(limit) do
          thread = Thread.new(&call)
          sleep 0.3
          expect(thread).to be_alive
          seconds { thread.kill.join }
        end
        expect(elapsed).to be < limit
      end

      it "ends by Thread#raise in time, with that exception" do
        elapsed = quickest(limit) do
          thread = Thread.new(&call)
          thread.report_on_exception = false
          sleep 0.3
          seconds do
            thread.raise(ArgumentError, "enough")
            expect { thread.join }.to raise_error(ArgumentError, "enough")
          end
        end
        expect(elapsed).to be < limit
      end
    end
  end

  { "native work" => "Candle::SelfTest.work(60.0)",
    "a matrix product" => "a = Candle::Tensor.ones([6000, 6000], dtype: :f64); puts; a.matmul(a)" }.each do |name, code|
    it "ends #{name} by Ctrl-C in time" do
      script = <<~RUBY
        begin
          puts
          #{code}
        rescue Interrupt
          puts "interrupted"
          exit!(3)
        end
      RUBY
      took = quickest(limit) do
        elapsed, output, status = signal_ruby(script, :INT)
        expect([output.strip, status.exitstatus]).to eq(["interrupted", 3])
        elapsed
      end
      expect(took).to be < limit
    end
  end

  it "goes on after a signal whose handler raises nothing" do
    script = <<~RUBY
      trap("USR1") { puts "heard" }
      puts
      a = Candle::Tensor.ones([1500, 1500], dtype: :f64)
      sum = 0
      5.times { sum += a.matmul(a).sum.item }
      Candle::SelfTest.work(0.5)
      puts sum == 5 * 1500.0**3
    RUBY
    _elapsed, output, status = signal_ruby(script, :USR1)
    expect(status).to be_success
    expect(output.split).to eq(%w[heard true])
  end

  it "ends the reading of a long array, and the making of one" do
    numbers = Array.new(3_000_000, 0.5)
    large = Candle::Tensor.zeros([100_000_000], dtype: :u8)
    [-> { loop { Candle::Tensor.new(numbers) } }, -> { large.to_a }].each do |call|
      elapsed = quickest(limit) do
        thread = Thread.new(&call)
        sleep 0.3
        expect(thread).to be_alive
        seconds { thread.kill.join }
      end
      expect(elapsed).to be < limit
    end
  end

  it "computes in many threads at once, each its own result" do
    results = Array.new(8) do |index|
      Thread.new do
        tensor = Candle::Tensor.ones([200, 200]) * index
        Array.new(5) { tensor.matmul(tensor)[0, 0].item }
      end
    end.map(&:value)
    expect(results).to eq(Array.new(8) { |index| [200.0 * index * index] * 5 })
  end
end
