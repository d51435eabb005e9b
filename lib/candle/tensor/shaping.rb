# frozen_string_literal: true

module Candle
  class Tensor
    # @example
    #   Candle::Tensor.new([1, 2, 3, 4]).reshape([2, -1]).to_a # => [[1.0, 2.0], [3.0, 4.0]]
    #
    # @param shape [Array<Integer>, Integer] the sizes, also as separate arguments; one may be -1 for
    #   what the others leave
    # @return [Tensor]
    # @raise [InvalidInputError] when the number of elements differs, with both shapes
    def reshape(*shape)
      _reshape(integers(shape, "reshape"))
    end

    # A view that repeats this tensor without a copy.
    #
    # @example
    #   Candle::Tensor.new([1, 2]).broadcast_as([2, 2]).to_a # => [[1.0, 2.0], [1.0, 2.0]]
    #
    # @param shape [Array<Integer>, Integer] the sizes, also as separate arguments
    # @return [Tensor]
    # @raise [InvalidInputError] when this shape does not broadcast to that one, with both
    def broadcast_as(*shape)
      _broadcast_as(Tensor.sizes(integers(shape, "broadcast_as")))
    end

    # Like {#broadcast_as}, given the new dimensions only, which stand before the present ones.
    #
    # @example
    #   Candle::Tensor.new([1, 2]).broadcast_left([3]).shape # => [3, 2]
    #
    # @param left_shape [Array<Integer>, Integer] the sizes, also as separate arguments
    # @return [Tensor]
    def broadcast_left(*left_shape)
      broadcast_as(integers(left_shape, "broadcast_left") + shape)
    end

    # Drops a dimension of size 1; one of another size stays.
    #
    # @example
    #   Candle::Tensor.new([[1, 2]]).squeeze(0).shape # => [2]
    #
    # @param dim [Integer]
    # @return [Tensor]
    def squeeze(dim) = _squeeze(Arguments.integer(dim, "dim"))

    # Adds a dimension of size 1.
    #
    # @example
    #   Candle::Tensor.new([1, 2]).unsqueeze(-1).shape # => [2, 1]
    #
    # @param dim [Integer] where the new dimension stands
    # @return [Tensor]
    def unsqueeze(dim) = _unsqueeze(Arguments.integer(dim, "dim"))

    # Swaps two dimensions.
    #
    # @example
    #   Candle::Tensor.zeros([2, 3, 4]).transpose(0, 2).shape # => [4, 3, 2]
    #
    # @param first [Integer]
    # @param second [Integer]
    # @return [Tensor]
    def transpose(first, second) = _transpose(*integers([first, second], "transpose"))

    # Swaps the last two dimensions; with fewer, there is nothing to swap.
    #
    # @example
    #   Candle::Tensor.new([[1, 2], [3, 4]]).t.to_a # => [[1.0, 3.0], [2.0, 4.0]]
    #
    # @return [Tensor]
    def t
      rank < 2 ? self : _transpose(-2, -1)
    end

    # Puts the dimensions into another order.
    #
    # @example
    #   Candle::Tensor.zeros([2, 3, 4]).permute([2, 0, 1]).shape # => [4, 2, 3]
    #
    # @param dims [Array<Integer>, Integer] every dimension once, also as separate arguments
    # @return [Tensor]
    def permute(*dims)
      _permute(integers(dims, "permute"))
    end

    # Some elements of a dimension, which stays.
    #
    # @example
    #   Candle::Tensor.new([1, 2, 3, 4]).narrow(0, 1, 2).to_a # => [2.0, 3.0]
    #
    # @param dim [Integer]
    # @param start [Integer]
    # @param length [Integer]
    # @return [Tensor]
    # @raise [InvalidInputError] when there are not as many
    def narrow(dim, start, length)
      integers([dim, start, length], "narrow")
      raise InvalidInputError, "narrow: the length is negative: #{length}" if length.negative?

      _narrow(dim, start, length)
    end

    # Splits a dimension into parts whose sizes differ by at most one.
    #
    # @example
    #   Candle::Tensor.new([1, 2, 3]).chunk(2).map(&:to_a) # => [[1.0, 2.0], [3.0]]
    #
    # @param chunks [Integer] fewer come when the dimension has fewer elements
    # @param dim [Integer]
    # @return [Array<Tensor>]
    def chunk(chunks, dim = 0)
      integers([chunks, dim], "chunk")
      raise InvalidInputError, "chunk: a number of chunks is at least 1, not #{chunks}" unless chunks.positive?

      size = size_of(dim)
      least, longer = size.divmod(chunks)
      start = 0
      Array.new(chunks.clamp(1, [size, 1].max)) do |index|
        length = least + (index < longer ? 1 : 0)
        narrow(dim, start, length).tap { start += length }
      end
    end

    # Makes one dimension of `dim` and those after it.
    #
    # @example
    #   Candle::Tensor.zeros([2, 3, 4]).flatten_from(1).shape # => [2, 12]
    #
    # @param dim [Integer]
    # @return [Tensor]
    def flatten_from(dim)
      kept = position(dim)
      reshape(shape.take(kept) + [shape.drop(kept).inject(1, :*)])
    end

    # Makes one dimension of `dim` and those before it.
    #
    # @example
    #   Candle::Tensor.zeros([2, 3, 4]).flatten_to(1).shape # => [6, 4]
    #
    # @param dim [Integer]
    # @return [Tensor]
    def flatten_to(dim)
      last = position(dim)
      reshape([shape.take(last + 1).inject(1, :*)] + shape.drop(last + 1))
    end

    # @example
    #   Candle::Tensor.zeros([2, 3, 4]).flatten_all.shape # => [24]
    #
    # @return [Tensor] with all elements in one dimension
    def flatten_all
      reshape([elem_count])
    end

    # @!method contiguous
    #   @example
    #     Candle::Tensor.new([[1, 2], [3, 4]]).t.contiguous.is_contiguous # => true
    #   @return [Tensor] the same elements in row-major order, copied when they are not so already

    # @!method copy
    #   @example
    #     Candle::Tensor.new([1, 2]).copy.to_a # => [1.0, 2.0]
    #   @return [Tensor] the same elements in memory of its own

    # @!method detach
    #   @example
    #     Candle::Tensor.new([1, 2]).detach.to_a # => [1.0, 2.0]
    #   @return [Tensor] another object with the same memory

    alias dup detach
    alias clone detach

    private

    def integers(arguments, name)
      list = arguments.size == 1 && Array === arguments.first ? arguments.first : arguments
      return list if list.all? { |number| Integer === number && number.bit_length < 64 }

      raise InvalidInputError, "#{name} takes Integers of 64 bits, not #{Arguments.shown(list)}"
    end

    # `dim` counted from the front.
    def position(dim)
      raise InvalidInputError, "a dimension must be an Integer, not #{Arguments.shown(dim)}" unless Integer === dim

      front = dim.negative? ? dim + rank : dim
      return front if front.between?(0, rank - 1)

      raise InvalidInputError, "dimension #{dim} is out of range for shape #{shape} of rank #{rank}"
    end

    def size_of(dim)
      shape[position(dim)]
    end
  end
end
