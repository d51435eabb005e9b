# frozen_string_literal: true

# Native memory counts for Ruby's collector, so that dropped tensors do not pile up.
RSpec.describe "Native memory", if: File.readable?("/proc/self/status") do
  measure = <<~RUBY
    def resident = File.read("/proc/self/status")[/VmRSS:\\s+(\\d+)/, 1].to_i / 1024
    highest = 0
    mark = -> { highest = [highest, resident].max }
  RUBY

  # @return [Integer] MiB
  def highest_resident(measure, script)
    output, errors, status = run_ruby("#{measure}\n#{script}\nputs highest")
    expect(status).to be_success, errors
    output.to_i
  end

  it "stays bounded while tensors of 16 MiB come and go" do
    # 6.4 GB in all, without a word to the collector.
    highest = highest_resident(measure, <<~RUBY)
      400.times { Candle::Tensor.ones([4 << 20]); mark.call }
    RUBY
    expect(highest).to be < 600
  end

  it "stays bounded while results and views come and go" do
    highest = highest_resident(measure, <<~RUBY)
      tensor = Candle::Tensor.ones([1 << 20])
      200.times { (tensor + 1).reshape([1024, 1024]).t.contiguous[0]; mark.call }
    RUBY
    expect(highest).to be < 600
  end

  it "keeps the memory of a view alive when the whole is gone" do
    views = Array.new(20) { |index| (Candle::Tensor.ones([1 << 18]) * index)[5..6] }
    GC.start
    expect(views.map(&:to_a)).to eq(Array.new(20) { |index| [index.to_f] * 2 })
  end

  it "survives a full collection at every allocation" do
    output, errors, status = run_ruby(<<~RUBY)
      compute = lambda do
        a = Candle::Tensor.new([[1, 2], [3, 4]])
        b = (2 * a.matmul(a).t + a[0]).cat(Candle::Tensor.zeros([1, 2]))
        error = (a + Candle::Tensor.zeros([3]) rescue $!)
        [b, b.map { |row| row.sum.item }, error.class]
      end
      compute.call # files are loaded by then, which makes thousands of objects
      GC.stress = true
      b, rows, error = compute.call
      GC.stress = false
      p b.to_a, rows, Candle::Tensor.from_packed(b.to_packed, [3, 2], :f32) == b, error
    RUBY
    expect(status).to be_success, errors
    expect(output.lines(chomp: true)).to eq(["[[15.0, 32.0], [21.0, 46.0], [0.0, 0.0]]", "[47.0, 67.0, 0.0]", "true",
                                             "Candle::InvalidInputError"])
  end

  it "is told to ObjectSpace" do
    require "objspace"
    expect(ObjectSpace.memsize_of(Candle::Tensor.zeros([1 << 18]))).to be >= 1 << 20
  end
end
