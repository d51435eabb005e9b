# frozen_string_literal: true

module Candle
  class Tensor
    class << self
      # @example
      #   Candle::Tensor.new([[1, 2], [3, 4]], :i64).shape # => [2, 2]
      #
      # @param array [Array, Numeric, Tensor, Enumerable] numbers, true and false (1 and 0), nested
      #   to any depth; all arrays of one depth have the same length
      # @param dtype [DType, Symbol, String, nil] nil is f32, for a Tensor its own
      # @param device [Device, String, Symbol, nil] nil is the CPU, for a Tensor its own
      # @return [Tensor]
      # @raise [InvalidInputError] for ragged arrays and for what isn't a number, with its place
      def new(array, dtype = nil, device: nil)
        return converted(array, dtype, device) if Tensor === array

        array = Arguments.members(array) if Enumerable === array && !array.is_a?(Array)
        return converted(stack(array), dtype, device) if Array === array && array.any?(Tensor)

        _from_array(array, DType.parse(dtype || :f32), Device.parse(device || "cpu"))
      end

      # @example
      #   Candle::Tensor.zeros([2, 2]).to_a # => [[0.0, 0.0], [0.0, 0.0]]
      #
      # @param shape [Array<Integer>, Integer]
      # @param device [Device, String, Symbol, nil] nil is the CPU
      # @param dtype [DType, Symbol, String, nil] nil is f32
      # @return [Tensor]
      def zeros(shape, device: nil, dtype: nil)
        _filled(false, sizes(shape), DType.parse(dtype || :f32), Device.parse(device || "cpu"))
      end

      # @example
      #   Candle::Tensor.ones(3, dtype: :u8).to_a # => [1, 1, 1]
      #
      # @param (see .zeros)
      # @return [Tensor]
      def ones(shape, device: nil, dtype: nil)
        _filled(true, sizes(shape), DType.parse(dtype || :f32), Device.parse(device || "cpu"))
      end

      # Random numbers from 0 up to, not including, 1. They come from Ruby's own generator, so that
      # `srand` makes them repeat.
      #
      # @example
      #   Candle::Tensor.rand([2, 3]).shape # => [2, 3]
      #
      # @param (see .zeros)
      # @return [Tensor]
      def rand(shape, device: nil, dtype: nil)
        _random(false, Random.rand(2**64), sizes(shape), DType.parse(dtype || :f32), Device.parse(device || "cpu"))
      end

      # Random numbers of the normal distribution with mean 0 and standard deviation 1. They come
      # from Ruby's own generator, so that `srand` makes them repeat.
      #
      # @example
      #   Candle::Tensor.randn([2, 3]).shape # => [2, 3]
      #
      # @param (see .zeros)
      # @return [Tensor]
      def randn(shape, device: nil, dtype: nil)
        _random(true, Random.rand(2**64), sizes(shape), DType.parse(dtype || :f32), Device.parse(device || "cpu"))
      end

      # The inverse of {#to_packed}.
      #
      # @example
      #   Candle::Tensor.from_packed([1.5, 2.5].pack("e*"), [2], :f32).to_a # => [1.5, 2.5]
      #
      # @param string [String] the elements, little-endian, in row-major order
      # @param shape [Array<Integer>, Integer]
      # @param dtype [DType, Symbol, String]
      # @param device [Device, String, Symbol, nil] nil is the CPU
      # @return [Tensor]
      # @raise [InvalidInputError] when the string has not as many bytes as the shape takes
      def from_packed(string, shape, dtype, device: nil)
        _from_packed(string, sizes(shape), DType.parse(dtype), Device.parse(device || "cpu"))
      end

      # Joins tensors along a dimension that they have.
      #
      # @example
      #   a = Candle::Tensor.new([[1, 2]])
      #   Candle::Tensor.cat([a, a], 0).shape # => [2, 2]
      #
      # @param tensors [Array<Tensor>]
      # @param dim [Integer]
      # @return [Tensor]
      # @raise [InvalidInputError] when other dimensions differ, with both shapes
      def cat(tensors, dim = 0)
        _cat(tensors(tensors), Arguments.integer(dim, "dim"))
      end

      # Joins tensors of one shape along a new dimension.
      #
      # @example
      #   a = Candle::Tensor.new([1, 2])
      #   Candle::Tensor.stack([a, a, a], 1).shape # => [2, 3]
      #
      # @param tensors [Array<Tensor>]
      # @param dim [Integer] where the new dimension stands
      # @return [Tensor]
      # @raise [InvalidInputError] when the shapes differ, with both
      def stack(tensors, dim = 0)
        tensors = tensors(tensors)
        shape = tensors.first.shape unless tensors.empty?
        other = tensors.find { |tensor| tensor.shape != shape }
        raise InvalidInputError, "stack: shapes #{shape} and #{other.shape} differ" if other

        _cat(tensors.map { |tensor| tensor.unsqueeze(dim) }, Arguments.integer(dim, "dim"))
      end

      # @api private
      # @return [Array<Tensor>] what is to be joined
      # @raise [InvalidInputError] naming the index of what isn't a Tensor
      def tensors(given)
        list = Arguments.list(given)
        list = [list] unless Array === list
        list.each_with_index do |tensor, index|
          next if Tensor === tensor

          raise InvalidInputError, "tensors[#{index}] must be a Tensor, not #{Arguments.shown(tensor)}"
        end
      end

      # @api private
      # @return [Array<Integer>] a shape as it is given by a user
      def sizes(shape)
        sizes = Integer === shape ? [shape] : shape
        valid = Array === sizes && sizes.all? { |size| Integer === size && size >= 0 && size.bit_length < 64 }
        raise InvalidInputError, "a shape is an Array of Integers from 0 on, not #{Arguments.shown(shape)}" unless valid

        sizes
      end

      private

      def converted(tensor, dtype, device)
        tensor = tensor.to_dtype(dtype) if dtype
        device ? tensor.to_device(device) : tensor.detach
      end
    end

    # Joins this tensor and others along a dimension that they have.
    #
    # @example
    #   a = Candle::Tensor.new([1, 2])
    #   a.cat(a).to_a # => [1.0, 2.0, 1.0, 2.0]
    #
    # @param others [Tensor, Array<Tensor>]
    # @param dim [Integer]
    # @return [Tensor]
    def cat(others, dim = 0)
      Tensor.cat([self, *others_of(others)], dim)
    end

    # Joins this tensor and others of its shape along a new dimension.
    #
    # @example
    #   a = Candle::Tensor.new([1, 2])
    #   a.stack(a).shape # => [2, 2]
    #
    # @param others [Tensor, Array<Tensor>]
    # @param dim [Integer] where the new dimension stands
    # @return [Tensor]
    def stack(others, dim = 0)
      Tensor.stack([self, *others_of(others)], dim)
    end

    private

    def others_of(others)
      Tensor === others ? [others] : others
    end
  end
end
