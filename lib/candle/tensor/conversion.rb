# frozen_string_literal: true

module Candle
  class Tensor
    # @!method shape
    #   @example
    #     Candle::Tensor.new([[1, 2, 3]]).shape # => [1, 3]
    #   @return [Array<Integer>] the size of each dimension

    # @!method stride
    #   @example
    #     Candle::Tensor.new([[1, 2, 3]]).stride # => [3, 1]
    #   @return [Array<Integer>] how far apart neighbours along each dimension lie in memory

    # @!method dtype
    #   @example
    #     Candle::Tensor.new([1]).dtype == :f32 # => true
    #   @return [DType]

    # @!method device
    #   @example
    #     Candle::Tensor.new([1]).device.to_s # => "cpu"
    #   @return [Device]

    # @!method rank
    #   @example
    #     Candle::Tensor.new([[1, 2, 3]]).rank # => 2
    #   @return [Integer] the number of dimensions

    # @!method elem_count
    #   @example
    #     Candle::Tensor.new([[1, 2, 3]]).elem_count # => 3
    #   @return [Integer] the number of elements

    # @!method is_contiguous
    #   @example
    #     Candle::Tensor.new([[1, 2], [3, 4]]).t.is_contiguous # => false
    #   @return [Boolean] whether the elements lie in memory in row-major order

    # @!method is_fortran_contiguous
    #   @example
    #     Candle::Tensor.new([[1, 2], [3, 4]]).t.is_fortran_contiguous # => true
    #   @return [Boolean] whether the elements lie in memory in column-major order

    # @!method values
    #   @example
    #     Candle::Tensor.new([[1, 2], [3, 4]], :i64).values # => [1, 2, 3, 4]
    #   @return [Array<Float>, Array<Integer>] all elements in row-major order

    # @!method to_a
    #   @example
    #     Candle::Tensor.new([[1, 2], [3, 4]], :i64).to_a # => [[1, 2], [3, 4]]
    #   @return [Array, Float, Integer] the elements, nested as the shape says; of rank 0, the number

    # @!method item
    #   @example
    #     Candle::Tensor.new([[7]], :u8).item # => 7
    #   @return [Float, Integer] the only element
    #   @raise [InvalidInputError] when there is not exactly one

    # @!method to_packed
    #   @example
    #     Candle::Tensor.new([1, 2], :u8).to_packed # => "\x01\x02"
    #   @return [String] the elements as little-endian bytes, in row-major order

    # @example
    #   Candle::Tensor.new([1, 2], :u8).values_f32 # => [1.0, 2.0]
    #
    # @return [Array<Float>] all elements in row-major order, rounded to f32
    def values_f32
      to_dtype(:f32).values
    end

    # @example
    #   Candle::Tensor.new([2], :i64).to_f # => 2.0
    #
    # @return [Float] the only element
    # @raise [InvalidInputError] when there is not exactly one
    def to_f
      item.to_f
    end

    # @example
    #   Candle::Tensor.new([2.5]).to_i # => 2
    #
    # @return [Integer] the only element, without its fraction
    # @raise [InvalidInputError] when there is not exactly one, and for NaN and infinity
    def to_i
      number = item
      raise InvalidInputError, "#{number} can't be an Integer: check it with to_f" unless number.finite?

      number.to_i
    end

    # Floats lose their fraction when they become integers, and what is out of range becomes the
    # nearest number in it.
    #
    # @example
    #   Candle::Tensor.new([1.7, -1.7]).to_dtype(:i64).to_a # => [1, -1]
    #
    # @param dtype [DType, Symbol, String]
    # @return [Tensor]
    def to_dtype(dtype)
      _to_dtype(DType.parse(dtype))
    end

    # @example
    #   Candle::Tensor.new([1, 2]).to_device("cpu").to_a # => [1.0, 2.0]
    #
    # @param device [Device, String, Symbol]
    # @return [Tensor]
    def to_device(device)
      _to_device(Device.parse(device))
    end

    # Yields each number of a tensor with one dimension, else each tensor along the first.
    #
    # @example
    #   Candle::Tensor.new([[1, 2], [3, 4]]).map { |row| row.sum.item } # => [3.0, 7.0]
    #
    # @yieldparam element [Float, Integer, Tensor]
    # @return [self, Enumerator]
    def each(&block)
      return enum_for(:each) { rank.zero? ? 1 : shape.first } unless block

      if rank < 2
        values.each(&block)
      else
        shape.first.times { |index| yield get(index) }
      end
      self
    end

    # @example
    #   Candle::Tensor.new([1, 2]) == Candle::Tensor.new([1, 2]) # => true
    #
    # @return [Boolean] whether `other` is a tensor of the same shape, type and elements; NaN equals
    #   nothing
    def ==(other)
      Tensor === other && _equal(other)
    end
  end
end
