# frozen_string_literal: true

RSpec.describe Candle::Tensor do
  def tensor(...) = described_class.new(...)

  all_types = %i[u8 u32 i16 i32 i64 bf16 f16 f32 f64]

  describe ".new" do
    it "takes nested arrays of any depth", :gc_stress do
      nested = [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
      expect(tensor(nested).to_a).to eq(nested)
      expect(tensor(nested).shape).to eq([2, 2, 2])
      expect(tensor([[[[[1]]]]]).shape).to eq([1, 1, 1, 1, 1])
    end

    it "makes f32 unless told otherwise" do
      expect(tensor([1, 2]).dtype).to eq(:f32)
      expect(tensor([1.5]).dtype).to eq(:f32)
    end

    all_types.each do |dtype|
      it "holds #{dtype} and gives back what it was given", :gc_stress do
        made = tensor([[0, 1], [2, 100]], dtype)
        expect(made.dtype).to eq(dtype)
        expect(made.to_a).to eq([[0, 1], [2, 100]])
        expect(made.values.first).to be_a(made.dtype.float? ? Float : Integer)
      end
    end

    it "takes a number, a Range, any Enumerable, booleans, Rationals, tensors" do
      expect(tensor(3).shape).to eq([])
      expect(tensor(1..4).to_a).to eq([1, 2, 3, 4])
      expect(tensor([3, 1].each_entry, :i64).to_a).to eq([3, 1])
      expect(tensor([true, false], :u8).to_a).to eq([1, 0])
      expect(tensor([1r / 2, 2]).to_a).to eq([0.5, 2])
      expect(tensor(tensor([1, 2], :u8)).dtype).to eq(:u8)
      expect(tensor([tensor([1, 2]), tensor([3, 4])]).to_a).to eq([[1, 2], [3, 4]])
    end

    it "keeps empty dimensions" do
      expect(tensor([]).shape).to eq([0])
      expect(tensor([[], []]).shape).to eq([2, 0])
      expect(tensor([[], []]).to_a).to eq([[], []])
    end

    it "names the place and both lengths of ragged arrays" do
      expect { tensor([[1, 2], [3]]) }.to raise_error(Candle::InvalidInputError, /array\[1\].* 1 .* 2/)
      expect { tensor([[[1, 2]], [[3, 4, 5]]]) }.to raise_error(Candle::InvalidInputError, /array\[1\]\[0\].* 3 .* 2/)
      expect { tensor([1, [2]]) }.to raise_error(Candle::InvalidInputError, /array\[1\]/)
      expect { tensor([[1], 2]) }.to raise_error(Candle::InvalidInputError, /array\[1\]/)
    end

    it "refuses what isn't a number" do
      expect { tensor([1, nil]) }.to raise_error(Candle::InvalidInputError, /array\[1\] is of the class NilClass/)
      expect { tensor(["1"]) }.to raise_error(Candle::InvalidInputError, /String/)
      expect { tensor("1") }.to raise_error(Candle::InvalidInputError, /String/)
      expect { tensor([1], :f13) }.to raise_error(Candle::InvalidInputError, /unknown dtype.*f32/)
      loop_of_arrays = []
      loop_of_arrays << loop_of_arrays
      expect { tensor(loop_of_arrays) }.to raise_error(Candle::InvalidInputError, /nested/)
    end

    it "refuses integers that do not fit, and holds the greatest that do" do
      expect { tensor([1, 300], :u8) }.to raise_error(Candle::InvalidInputError, /300 \(element 1\).*u8.*255/)
      expect { tensor([-1], :u32) }.to raise_error(Candle::InvalidInputError, /-1/)
      expect { tensor([2**64], :i64) }.to raise_error(Candle::InvalidInputError, /does not fit i64/)
      expect { tensor([Float::NAN], :i64) }.to raise_error(Candle::InvalidInputError, /NaN/)
      expect(tensor([2**63 - 1, -2**63], :i64).to_a).to eq([2**63 - 1, -2**63])
    end

    it "survives an array that shrinks while it is read" do
      array = [nil, 1, 2, 3]
      trickster = Class.new(Numeric) { define_method(:to_f) { array.clear && 1.0 } }
      array[0] = trickster.new
      expect { tensor(array) }.to raise_error(Candle::InvalidInputError)
    end
  end

  describe ".zeros, .ones, .rand, .randn" do
    it "makes constant tensors of every type" do
      all_types.each do |dtype|
        expect(described_class.zeros([2, 1], dtype:).to_a).to eq([[0], [0]])
        expect(described_class.ones(2, dtype:, device: "cpu").to_a).to eq([1, 1])
      end
      expect(described_class.ones([]).item).to eq(1)
      expect(described_class.zeros([2, 0]).to_a).to eq([[], []])
    end

    it "draws numbers that have the right moments and repeat after srand" do
      previous = srand(5)
      uniform = described_class.rand([50_000])
      normal = described_class.randn([50_000], dtype: :f64)
      srand(5)
      expect(described_class.rand([50_000])).to eq(uniform)
      expect(described_class.rand([50_000])).not_to eq(uniform)
      expect(uniform.values).to all(be >= 0).and all(be < 1)
      expect(uniform.mean.item).to be_within(0.01).of(0.5)
      expect(normal.mean.item).to be_within(0.03).of(0)
      expect(normal.var.item).to be_within(0.05).of(1)
    ensure
      srand(previous)
    end

    it "refuses impossible shapes before it allocates" do
      expect { described_class.zeros([1 << 40]) }.to raise_error(Candle::OutOfMemoryError, /1099511627776.*TiB/)
      expect { described_class.rand([1 << 40, 2]) }.to raise_error(Candle::OutOfMemoryError)
      expect { described_class.ones([1 << 62, 1 << 62]) }.to raise_error(Candle::OutOfMemoryError)
      [[-1], [1.5], "2", nil, [2, nil]].each do |shape|
        expect { described_class.zeros(shape) }.to raise_error(Candle::InvalidInputError, /shape/)
      end
      expect { described_class.rand([2], dtype: :i64) }.to raise_error(Candle::InvalidInputError, /float/)
    end
  end

  describe ".from_packed and #to_packed" do
    { u8: "C*", u32: "L<*", i16: "s<*", i32: "l<*", i64: "q<*", f32: "e*", f64: "E*" }.each do |dtype, directive|
      it "agrees with Array#pack for #{dtype}", :gc_stress do
        packed = [1, 2, 3, 100].pack(directive)
        expect(described_class.from_packed(packed, [2, 2], dtype).to_a).to eq([[1, 2], [3, 100]])
        expect(tensor([1, 2, 3, 100], dtype).to_packed).to eq(packed)
        expect(tensor([[1, 3], [2, 100]], dtype).t.to_packed).to eq(packed)
      end
    end

    it "knows the bits of half precision" do
      expect(tensor([1.0, -2.0], :f16).to_packed).to eq([0x3c00, 0xc000].pack("S<*"))
      expect(tensor([1.0, -2.0], :bf16).to_packed).to eq([0x3f80, 0xc000].pack("S<*"))
    end

    it "names both sizes when they differ" do
      expect { described_class.from_packed("12345", [2], :f32) }
        .to raise_error(Candle::InvalidInputError, /\[2\].* 8 bytes.* 5/)
      expect { described_class.from_packed("", [1 << 62, 2], :f64) }.to raise_error(Candle::Error)
    end
  end

  describe "conversion" do
    it "gives one number for one element only" do
      expect(tensor([[2.5]]).item).to eq(2.5)
      expect(tensor(7, :i64).to_f).to eql(7.0)
      expect(tensor([2.9]).to_i).to eq(2)
      expect { tensor([1, 2]).item }.to raise_error(Candle::InvalidInputError, /\[2\] has 2 elements/)
      expect { tensor([]).to_f }.to raise_error(Candle::InvalidInputError, /0 elements/)
    end

    it "changes the type as Ruby's own conversions do" do
      expect(tensor([1.7, -1.7, 3e9]).to_dtype(:i64).to_a).to eq([1, -1, 3_000_000_000])
      expect(tensor([300, -1, Float::NAN]).to_dtype(:u8).to_a).to eq([255, 0, 0])
      expect(tensor([0.1], :f64).to_dtype(:f32).item).to eq([0.1].pack("e").unpack1("e"))
      expect(tensor([1, 2], :u8).values_f32).to eql([1.0, 2.0])
    end

    it "describes itself" do
      made = tensor([[1, 2, 3], [4, 5, 6]], :i32)
      expect([made.shape, made.stride, made.rank, made.elem_count]).to eq([[2, 3], [3, 1], 2, 6])
      expect([made.dtype, made.device]).to eq([Candle::DType.parse(:i32), Candle::Device.cpu])
      expect(made.t.stride).to eq([1, 3])
      expect([made.is_contiguous, made.t.is_contiguous, made.t.is_fortran_contiguous]).to eq([true, false, true])
      same = %i[contiguous copy detach dup].map { |name| made.t.public_send(name).to_a }
      expect(same).to all(eq([[1, 4], [2, 5], [3, 6]]))
      expect(made.to_device("cpu")).to eq(made)
    end

    it "says why a GPU can't be used" do
      expect { tensor([1]).to_device("cuda:63") }.to raise_error(Candle::DeviceError, /cuda:63/)
      expect { tensor([1], device: "tpu") }.to raise_error(Candle::DeviceError, /tpu/)
    end
  end

  describe "operators" do
    it "takes numbers on either side", :gc_stress do
      made = tensor([1.0, 4.0])
      expect((made + 1).to_a).to eq([2, 5])
      expect((2 - made).to_a).to eq([1, -2])
      expect((8 / made).to_a).to eq([8, 2])
      expect((made * 0.5).to_a).to eq([0.5, 2])
      expect((-made).to_a).to eq([-1, -4])
      expect((made - (1r / 2)).to_a).to eq([0.5, 3.5])
      expect(made.broadcast_add(made).broadcast_sub(1).broadcast_mul(2).broadcast_div(2).to_a).to eq([1, 7])
    end

    it "keeps the type beside a plain number, but for an integer tensor beside a Float" do
      expect((tensor([1], :f16) + 1.5).dtype).to eq(:f16)
      expect((tensor([1], :u8) + 1).dtype).to eq(:u8)
      expect((tensor([1], :u8) + 0.5).dtype).to eq(:f32)
      expect((1.5 * tensor([3], :i64)).item).to eq(4.5)
      expect { tensor([1], :u8) + 300 }.to raise_error(Candle::InvalidInputError, /300.*u8/)
      expect(tensor([1], :u8).lt(300).item).to eq(1)
      expect(tensor([1, 2], :i64).gt(1.5).to_a).to eq([0, 1])
    end

    it "divides integers as Ruby does" do
      expect((tensor([7, -7], :i64) / 2).to_a).to eq([7 / 2, -7 / 2])
      expect((tensor([7, -7], :i64) / -2).to_a).to eq([7 / -2, -7 / -2])
      expect { tensor([1], :i64) / 0 }.to raise_error(Candle::InvalidInputError, /divided by zero/)
      expect((tensor([1.0, -1.0, 0.0]) / 0).to_a).to match([Float::INFINITY, -Float::INFINITY, be_nan])
      expect((tensor([-2**63], :i64) / -1).to_a).to eq([-2**63])
    end

    it "names both shapes when they do not fit" do
      a = tensor([[1, 2, 3], [4, 5, 6]])
      b = tensor([1, 2])
      both = /\[2, 3\].*\[2\]/
      %i[+ - * / eq lt broadcast_add].each do |name|
        expect { a.public_send(name, b) }.to raise_error(Candle::InvalidInputError, both)
      end
      expect { a.matmul(b) }.to raise_error(Candle::InvalidInputError, both)
      expect { a.where_cond(b, 0) }.to raise_error(Candle::InvalidInputError, /\[2, 3\].*\[2\]/)
      expect { a.cat(b) }.to raise_error(Candle::InvalidInputError, both)
      expect { a.stack(b) }.to raise_error(Candle::InvalidInputError, both)
      expect { a.reshape([4]) }.to raise_error(Candle::InvalidInputError, /\[2, 3\].*\[4\]/)
      expect { a.broadcast_as([2, 4]) }.to raise_error(Candle::InvalidInputError, /\[2, 3\].*\[2, 4\]/)
      expect { a.layer_norm(b, nil, 1e-5) }.to raise_error(Candle::InvalidInputError, /\[2\].*\[2, 3\]/)
      expect { a.gather(b.to_dtype(:i64), 0) }.to raise_error(Candle::InvalidInputError, /\[2\].*\[2, 3\]/)
    end

    it "says what to do about integers where floats are needed" do
      %i[sin cos tanh log exp sqrt recip gelu silu sigmoid softmax].each do |name|
        expect { tensor([1, 2], :i64).public_send(name) }
          .to raise_error(Candle::InvalidInputError, /#{name}.*i64.*to_dtype\(:f32\)/)
      end
      expect { tensor([[1]], :i64).matmul(tensor([[1]], :i64)) }.to raise_error(Candle::InvalidInputError, /to_dtype/)
      expect { tensor([1], :u8).neg }.to raise_error(Candle::InvalidInputError, /to_dtype\(:i64\)/)
      expect { tensor([1], :i64).powf(2) }.to raise_error(Candle::InvalidInputError, /to_dtype/)
    end

    it "refuses other objects" do
      expect { tensor([1]) * "1" }.to raise_error(TypeError, /String/)
      expect { tensor([1]) + nil }.to raise_error(TypeError, /NilClass/)
      expect { tensor([1]).matmul(2) }.to raise_error(TypeError)
    end
  end

  describe "==" do
    it "wants the same shape, type and elements" do
      made = tensor([[1, 2]])
      expect(made).to eq(tensor([[1, 2]]))
      expect(made).not_to eq(tensor([1, 2]))
      expect(made).not_to eq(tensor([[1, 2]], :f64))
      expect(made).not_to eq(tensor([[1, 3]]))
      expect(made).not_to eq([[1, 2]])
      expect(tensor([Float::NAN])).not_to eq(tensor([Float::NAN]))
      expect(made.t).to eq(tensor([[1], [2]]))
      expect(tensor([])).to eq(tensor([]))
    end
  end

  describe "Enumerable" do
    it "yields numbers of one dimension, and tensors of more", :gc_stress do
      expect(tensor([3, 1, 2], :i64).sort).to eq([1, 2, 3])
      expect(tensor([3, 1, 2], :i64).each_with_index.to_a).to eq([[3, 0], [1, 1], [2, 2]])
      expect(tensor([[1, 2], [3, 4]]).map { |row| row.sum.item }).to eq([3, 7])
      expect(tensor([[1, 2], [3, 4]]).first).to eq(tensor([1, 2]))
      expect(tensor([1, 2, 3, 4], :u8).lazy.select(&:even?).map { |number| number * 2 }.first(1)).to eq([4])
      expect(tensor([1, 2]).each.size).to eq(2)
      expect(tensor(5).each.to_a).to eq([5])
      expect(tensor([]).each.to_a).to eq([])
      expect(tensor([5, 9, 2]).max).to eq(9)
    end
  end

  describe "#inspect and #to_s" do
    it "is one short line, whatever the size" do
      expect(tensor([[1, 2], [3, 4]]).inspect).to eq("#<Candle::Tensor [2, 2] f32 cpu: 1.0, 2.0, 3.0, 4.0>")
      expect(described_class.zeros([100, 100]).inspect).to end_with("0.0, 0.0, ...>")
      expect(tensor([], :u8).inspect).to eq("#<Candle::Tensor [0] u8 cpu: >")
      expect(described_class.zeros([7] * 8, dtype: :u8).inspect.size).to be < 100
    end

    it "prints rows, and leaves out the middle of what is long" do
      expect(tensor([[1, 20], [3, 4]], :i64).to_s).to eq("[[ 1, 20],\n [ 3,  4]]\nCandle::Tensor [2, 2] i64 cpu")
      expect(tensor(1.5).to_s).to eq("1.5000\nCandle::Tensor [] f32 cpu")
      expect(tensor([1e-9, 1e9]).to_s).to start_with("[1.0000e-09, 1.0000e+09]")
      long = tensor(0...2000, :i64).to_s
      expect(long).to start_with("[   0,    1,    2, ..., 1997, 1998, 1999]")
      expect(described_class.zeros([2, 2, 2], dtype: :u8).to_s.lines.size).to eq(6)
      expect(described_class.zeros([20, 20, 20, 20]).to_s.size).to be < 20_000
      expect(described_class.zeros([2, 0]).to_s).to include("[2, 0]")
    end
  end
end
