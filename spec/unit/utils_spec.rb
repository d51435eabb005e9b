# frozen_string_literal: true

RSpec.describe Candle::Utils do
  around do |example|
    previous = Candle.num_threads
    example.run
  ensure
    Candle.num_threads = previous
  end

  # How many arenas glibc has beside the first: their memory begins at multiples of 64 MiB.
  def arenas(before, environment = {})
    output, errors, status = run_ruby(<<~RUBY, environment)
      #{before}
      Array.new(24) { Thread.new { Array.new(200) { "x" * 2000 } && sleep(0.2) } }
      sleep 0.1
      maps = File.readlines("/proc/self/maps").grep(/rw-p 00000000 00:00 0 *$/)
      puts maps.count { |line| (line.to_i(16) % (64 << 20)).zero? }
    RUBY
    expect(status).to be_success, errors
    output.to_i
  end

  it "lets threads share the arenas of the allocator, unless the environment says how many" do
    skip("needs glibc") unless RUBY_PLATFORM.match?(/linux(-gnu)?\z/)
    expect(arenas("")).to be > 2
    # Some other memory may begin at such a multiple by chance.
    limited = Array.new(3) { arenas("exit 3 unless Candle::Utils.limit_arenas(2)") }
    expect(limited.min).to be <= 1
    expect(arenas("exit 3 if Candle::Utils.limit_arenas(2)", { "MALLOC_ARENA_MAX" => "5" })).to be > 1
  end

  it "counts the threads of a native call" do
    expect(described_class.get_num_threads).to be_positive
    Candle.num_threads = 3
    expect([described_class.get_num_threads, Candle.num_threads]).to eq([3, 3])
  end

  it "takes the number of threads from the environment" do
    count = lambda do |environment|
      output, errors, status = run_ruby("print Candle.num_threads", environment)
      expect(status).to be_success, errors
      output.to_i
    end
    other = count.call({}) + 1
    expect(count.call({ "CANDLE_NUM_THREADS" => other.to_s })).to eq(other)
    expect(count.call({ "RAYON_NUM_THREADS" => other.to_s })).to eq(other)
    expect(count.call({ "CANDLE_NUM_THREADS" => other.to_s, "RAYON_NUM_THREADS" => "7" })).to eq(other)
    expect(count.call({ "CANDLE_NUM_THREADS" => "none" })).to eq(other - 1)
  end

  it "computes the same with any number of threads" do
    tensor = Candle::Tensor.rand([300, 300])
    results = [1, 2, 5].map do |count|
      Candle.num_threads = count
      [tensor.sum.item, tensor.exp.to_packed, tensor.matmul(tensor).shape]
    end
    expect(results.uniq.size).to eq(1)
  end

  it "refuses what isn't a number of threads" do
    [0, -1, 1.5, "2", nil].each do |count|
      expect { Candle.num_threads = count }.to raise_error(ArgumentError, /num_threads/)
    end
    expect { Candle.num_threads = 100_000 }.to raise_error(Candle::InvalidInputError, /1024/)
  end
end
