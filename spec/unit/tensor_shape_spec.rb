# frozen_string_literal: true

RSpec.describe Candle::Tensor do
  # 0, 1, 2, ... in the given shape, and the same as nested arrays.
  def counted(*shape)
    described_class.new((0...shape.inject(1, :*)).to_a, :i64).reshape(shape)
  end

  let(:cube) { counted(2, 3, 4) }
  let(:rows) { (0...24).each_slice(4).each_slice(3).to_a }

  it "reshapes, with one open size", :gc_stress do
    expect(cube.to_a).to eq(rows)
    expect(cube.reshape([4, 6]).to_a).to eq((0...24).each_slice(6).to_a)
    expect(cube.reshape(-1, 8).shape).to eq([3, 8])
    expect(cube.t.reshape([2, 12]).to_a).to eq(rows.map { |slab| slab.transpose.flatten })
    expect(described_class.zeros([0, 3]).reshape([3, -1]).shape).to eq([3, 0])
    expect(described_class.new(5).reshape([1, 1]).to_a).to eq([[5]])
    [[5], [-1, -1], [7, -1], [-2, 12], [2, 3.5]].each do |shape|
      expect { cube.reshape(shape) }.to raise_error(Candle::InvalidInputError)
    end
  end

  it "flattens from either end" do
    expect(cube.flatten_from(1).shape).to eq([2, 12])
    expect(cube.flatten_to(-2).shape).to eq([6, 4])
    expect(cube.flatten_all.to_a).to eq((0...24).to_a)
    expect(described_class.new(1).flatten_all.shape).to eq([1])
    expect(cube.permute([2, 0, 1]).flatten_all.to_a).to eq(rows.flatten(1).transpose.flatten)
    expect { cube.flatten_from(3) }.to raise_error(Candle::InvalidInputError, /dimension 3.*\[2, 3, 4\]/)
  end

  it "adds and drops dimensions of size 1" do
    expect(cube.unsqueeze(0).shape).to eq([1, 2, 3, 4])
    expect(cube.unsqueeze(-1).shape).to eq([2, 3, 4, 1])
    expect(cube.unsqueeze(3).squeeze(-1).shape).to eq([2, 3, 4])
    expect(cube.squeeze(0).shape).to eq([2, 3, 4])
    expect { cube.unsqueeze(5) }.to raise_error(Candle::InvalidInputError, /5.*\[2, 3, 4\]/)
    expect { cube.squeeze(3) }.to raise_error(Candle::InvalidInputError)
  end

  it "reorders dimensions without a copy" do
    expect(cube.t.to_a).to eq(rows.map(&:transpose))
    expect(cube.transpose(0, 1).to_a).to eq(rows.transpose)
    expect(cube.transpose(-1, 0).shape).to eq([4, 3, 2])
    expect(cube.permute(1, 0, 2).to_a).to eq(rows.transpose)
    expect(described_class.new([1, 2]).t.to_a).to eq([1, 2])
    expect { cube.permute([0, 1]) }.to raise_error(Candle::InvalidInputError, /\[0, 1\].*\[2, 3, 4\]/)
    expect { cube.permute([0, 1, 1]) }.to raise_error(Candle::InvalidInputError)
    expect { cube.transpose(0, 3) }.to raise_error(Candle::InvalidInputError, /dimension 3/)
  end

  it "repeats without a copy" do
    expect(described_class.new([1, 2]).broadcast_as([2, 2]).to_a).to eq([[1, 2], [1, 2]])
    expect(described_class.new([[1], [2]]).broadcast_as(2, 3).to_a).to eq([[1, 1, 1], [2, 2, 2]])
    expect(described_class.new([1, 2]).broadcast_left([3]).to_a).to eq([[1, 2]] * 3)
    expect(described_class.new([1, 2]).broadcast_left(2, 2).shape).to eq([2, 2, 2])
    expect { cube.broadcast_as([4]) }.to raise_error(Candle::InvalidInputError, /\[2, 3, 4\].*\[4\]/)
  end

  it "refuses to make real what only a view can be" do
    vast = described_class.zeros([1, 1]).broadcast_as([1 << 21, 1 << 21])
    expect(vast.elem_count).to eq(1 << 42)
    [:contiguous, :copy, :to_a, :values, :to_packed, :exp, [:+, vast], [:cat, vast], [:matmul, vast], [:sum, 0], :gelu,
     %i[to_dtype f64], [:reshape, [1 << 42]], [:index_select, [0]], [:where_cond, 1, 2]].each do |call|
      expect { vast.public_send(*call) }.to raise_error(Candle::OutOfMemoryError), call.inspect
    end
    expect { vast.broadcast_left([1 << 30]) }.to raise_error(Candle::OutOfMemoryError)
  end

  it "narrows" do
    expect(cube.narrow(1, 1, 2).to_a).to eq(rows.map { |slab| slab[1, 2] })
    expect(cube.narrow(-1, -2, 2).to_a).to eq(rows.map { |slab| slab.map { |row| row[-2, 2] } })
    expect(cube.narrow(0, 2, 0).shape).to eq([0, 3, 4])
    [[0, 1, 2], [0, -3, 1], [3, 0, 1], [0, 0, -1]].each do |arguments|
      expect { cube.narrow(*arguments) }.to raise_error(Candle::InvalidInputError), arguments.inspect
    end
  end

  it "splits into chunks whose sizes differ by one at most" do
    expect(counted(7).chunk(3).map(&:to_a)).to eq([[0, 1, 2], [3, 4], [5, 6]])
    expect(counted(2).chunk(5).map(&:to_a)).to eq([[0], [1]])
    expect(cube.chunk(2, -1).map(&:shape)).to eq([[2, 3, 2]] * 2)
    expect(described_class.zeros([0]).chunk(3).map(&:shape)).to eq([[0]])
    expect { cube.chunk(0) }.to raise_error(Candle::InvalidInputError)
  end

  it "takes indices, ranges and lists", :gc_stress do
    expect(cube[1].to_a).to eq(rows[1])
    expect(cube[-1, 0].to_a).to eq(rows[-1][0])
    expect(cube[1, 2, 3].item).to eq(rows[1][2][3])
    expect(cube[0, 1..].to_a).to eq(rows[0][1..])
    expect(cube[0.., -2..-1, 0].to_a).to eq(rows.map { |slab| slab[-2..].map(&:first) })
    expect(cube[(nil..), (...1)].to_a).to eq(rows.map { |slab| slab[...1] })
    expect(cube[0, 1..100].to_a).to eq(rows[0][1..100])
    expect(cube[0, 3..].shape).to eq([0, 4])
    expect(cube[0, 2..1].shape).to eq([0, 4])
    expect(cube[1, [2, 0, -1]].to_a).to eq(rows[1].values_at(2, 0, -1))
    expect(cube.get(1).to_a).to eq(rows[1])
    expect(cube.get(-1, 2).to_a).to eq(rows.map { |slab| slab.map(&:last) })
  end

  it "refuses indices out of range, with the shape" do
    expect { cube[2] }.to raise_error(Candle::InvalidInputError, /index 2.*\[2, 3, 4\]/)
    expect { cube[0, -4] }.to raise_error(Candle::InvalidInputError, /index -4/)
    expect { cube[0, 0, 0, 0] }.to raise_error(Candle::InvalidInputError, /4 indices.*\[2, 3, 4\]/)
    expect { cube[0, 5..] }.to raise_error(Candle::InvalidInputError, /5\.\./)
    expect { cube["x"] }.to raise_error(Candle::InvalidInputError, /"x"/)
    expect { cube.index_select([0, 2], 0) }.to raise_error(Candle::InvalidInputError, /index 2.*size 2/)
    expect { cube.index_select(described_class.new([0.0]), 0) }.to raise_error(Candle::InvalidInputError, /integers/)
    expect { cube.gather([[[9]]], 2) }.to raise_error(Candle::InvalidInputError, /index 9/)
    expect { described_class.new(1).get(0) }.to raise_error(Candle::InvalidInputError)
  end

  it "joins along a dimension there is, or a new one", :gc_stress do
    a = described_class.new([[1, 2]])
    b = described_class.new([[3, 4]])
    expect(described_class.cat([a, b], 0).to_a).to eq([[1, 2], [3, 4]])
    expect(a.cat(b, -1).to_a).to eq([[1, 2, 3, 4]])
    expect(a.cat([b, b]).shape).to eq([3, 2])
    expect(described_class.stack([a, b]).to_a).to eq([[[1, 2]], [[3, 4]]])
    expect(a.stack(b, -1).to_a).to eq([[[1, 3], [2, 4]]])
    expect(described_class.cat([a.t, b.t], 1).to_a).to eq([[1, 3], [2, 4]])
    expect(described_class.cat([a], 0)).to eq(a)
    expect(described_class.cat([a, described_class.zeros([0, 2])]).to_a).to eq([[1, 2]])
    expect(a.cat(b.to_dtype(:f64)).dtype).to eq(:f64)
    expect { described_class.cat([]) }.to raise_error(Candle::InvalidInputError)
    expect { described_class.cat(5) }.to raise_error(Candle::InvalidInputError, /tensors\[0\] must be a Tensor, not 5/)
    expect { a.sum(2**64) }.to raise_error(Candle::InvalidInputError, /18446744073709551616/)
    expect { described_class.cat([1]) }.to raise_error(Candle::InvalidInputError, /tensors\[0\] must be a Tensor/)
  end

  it "chooses by condition, with numbers too" do
    a = described_class.new([[1, -2], [-3, 4]])
    expect(a.gt(0).where_cond(a, 0).to_a).to eq([[1, 0], [0, 4]])
    expect(a.lt(0).where_cond(1, 0).to_a).to eq([[0, 1], [1, 0]])
    expect(a.where_cond(9, a).to_a).to eq([[9, 9], [9, 9]])
    expect(a.gt(0).where_cond([[5], [6]].then { |v| described_class.new(v) }, -1).to_a).to eq([[5, -1], [-1, 6]])
  end

  it "reduces to single numbers" do
    expect(cube.sum_all.item).to eq(276)
    expect(cube.mean_all.item).to eq(11.5)
    expect(cube.sum([0, -1]).to_a).to eq([0, 1, 2].map { |i| rows.sum { |slab| slab[i].sum } })
    expect(cube.sum(0, keepdim: true).shape).to eq([1, 3, 4])
    expect(cube.var(0, unbiased: false).values).to all(eq(36))
    expect(cube.argmax.item).to eq(23)
    expect(cube.argmin(0).to_a).to eq([[0] * 4] * 3)
    nan = described_class.new([1, Float::NAN, 3])
    expect([nan.argmax.item, nan.max_keepdim(0).item]).to match([1, be_nan])
    expect(described_class.zeros([0]).mean.item).to be_nan
    expect(described_class.ones([20_000_000]).sum.item).to eq(20_000_000)
    expect { described_class.zeros([0]).argmax }.to raise_error(Candle::InvalidInputError, /no elements.*\[0\]/)
    expect { cube.sum([0, 0]) }.to raise_error(Candle::InvalidInputError, /twice/)
    expect { cube.sum(3) }.to raise_error(Candle::InvalidInputError, /dimension 3/)
  end

  it "computes long tensors in parts as it does short ones" do
    long = counted(300, 1000).to_dtype(:f64)
    expect((long + long.t.contiguous.t)[299, 999].item).to eq(2 * 299_999)
    expect(long.narrow(0, 0, 299).sqrt[298, 999].item).to eq(Math.sqrt(298_999))
    expect((long * counted(1000).to_dtype(:f64))[200, 500].item).to eq(200_500 * 500)
    expect((long - counted(300, 1).to_dtype(:f64))[200, 500].item).to eq(200_300)
    expect(long.t.sum(0)[7].item).to eq((7000...8000).sum)
    expect(long.ge(150_000).sum.item).to eq(150_000)
    expect(long.argmax(0).values).to all(eq(299))
    vast = counted(3, 1_500_000).t
    expect(vast.contiguous[1_499_999].to_a).to eq([1_499_999, 2_999_999, 4_499_999])
  end
end
