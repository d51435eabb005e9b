# frozen_string_literal: true

RSpec.describe Candle::Utils do
  around do |example|
    previous = Candle.num_threads
    example.run
  ensure
    Candle.num_threads = previous
  end

  it "counts the threads of a native call" do
    expect(described_class.get_num_threads).to be_positive
    Candle.num_threads = 3
    expect([described_class.get_num_threads, Candle.num_threads]).to eq([3, 3])
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
