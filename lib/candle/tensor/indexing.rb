# frozen_string_literal: true

module Candle
  class Tensor
    # @example
    #   Candle::Tensor.new([[1, 2], [3, 4]]).get(-1).to_a # => [3.0, 4.0]
    #
    # @param index [Integer]
    # @param dim [Integer] the dimension that is dropped
    # @return [Tensor]
    # @raise [InvalidInputError] when the index is out of range
    def get(index, dim = 0) = _select(Arguments.integer(dim, "dim"), Arguments.integer(index, "index"))

    # The rows of an f32 matrix on the CPU that are nearest to a vector by their cosine. The rows' lengths are computed
    # once for a tensor.
    #
    # @example
    #   Candle::Tensor.new([[0.0, 1.0], [3.0, 0.0]]).nearest(Candle::Tensor.new([1.0, 0.0]), top_k: 1) # => [[1, 1.0]]
    #
    # @param vector [Tensor] f32, with as many components as a row
    # @param top_k [Integer, nil] how many to return; nil is all
    # @return [Array<Array(Integer, Float)>] row and cosine, best first
    # @raise [InvalidInputError] when the sizes differ
    def nearest(vector, top_k: nil)
      _nearest(vector, Arguments.count(top_k, "top_k") || shape.first || 0)
    end

    # One index per dimension, from the first on; dimensions without one stay whole.
    #
    # @example
    #   a = Candle::Tensor.new([[1, 2, 3], [4, 5, 6]])
    #   a[0].to_a # => [1.0, 2.0, 3.0]
    #   a[1, -1].item # => 6.0
    #   a[0.., 1..2].to_a # => [[2.0, 3.0], [5.0, 6.0]]
    #   a[1, [2, 0]].to_a # => [6.0, 4.0]
    #
    # @param indices [Array<Integer, Range, Array<Integer>, Tensor>] an Integer drops its dimension;
    #   a Range keeps a part of it, and is cut off at its end; an Array or a Tensor picks from it
    # @return [Tensor]
    # @raise [InvalidInputError] when an index is out of range or there are too many
    def [](*indices)
      if indices.size > rank
        raise InvalidInputError, "#{indices.size} indices are too many for shape #{shape} of rank #{rank}"
      end

      dim = 0
      indices.inject(self) do |tensor, index|
        dim += 1 unless Integer === index
        pick(tensor, index, Integer === index ? dim : dim - 1)
      end
    end

    # @example
    #   Candle::Tensor.new([[1, 2], [3, 4]]).index_select([1, 1], 0).to_a # => [[3.0, 4.0], [3.0, 4.0]]
    #
    # @param indices [Tensor, Array<Integer>] integers, of rank 1
    # @param dim [Integer]
    # @return [Tensor] the slices along `dim` that the indices name
    # @raise [InvalidInputError] when an index is out of range
    def index_select(indices, dim = 0)
      _index_select(as_indices(indices), Arguments.integer(dim, "dim"))
    end

    # For each place of `indices` the element at that place, but with `dim` replaced by the index.
    #
    # @example
    #   Candle::Tensor.new([[1, 2], [3, 4]]).gather([[1], [0]], 1).to_a # => [[2.0], [3.0]]
    #
    # @param indices [Tensor, Array] integers, of the same rank
    # @param dim [Integer]
    # @return [Tensor] of the shape of `indices`
    # @raise [InvalidInputError] when an index is out of range or the shapes do not fit, with both
    def gather(indices, dim)
      _gather(as_indices(indices), Arguments.integer(dim, "dim"))
    end

    # Chooses by this tensor, as by a condition.
    #
    # @example
    #   a = Candle::Tensor.new([1, -2, 3])
    #   a.gt(0).where_cond(a, 0).to_a # => [1.0, 0.0, 3.0]
    #
    # @param on_true [Tensor, Numeric] taken where this tensor is not zero
    # @param on_false [Tensor, Numeric] taken elsewhere
    # @return [Tensor] of the shape that all three broadcast to
    # @raise [InvalidInputError] when they do not, with both shapes
    def where_cond(on_true, on_false)
      on_true = Tensor.new(on_true) unless Tensor === on_true || Tensor === on_false
      on_true = on_false.coerce(on_true).first unless Tensor === on_true
      on_false = on_true.coerce(on_false).first unless Tensor === on_false
      _where_cond(on_true, on_false)
    end

    private

    def pick(tensor, index, dim)
      case index
      when Integer then tensor.get(index, dim)
      when Range then tensor.narrow(dim, *bounds(index, tensor.shape[dim]))
      when Array, Tensor then tensor.index_select(index, dim)
      else
        raise InvalidInputError, "an index is an Integer, a Range, an Array or a Tensor, not #{Arguments.shown(index)}"
      end
    end

    # Start and length, as an Array would take the range.
    def bounds(range, size)
      start, stop = [range.begin || 0, range.end || -1].map do |bound|
        Arguments.integer(bound, "the bound of a range").negative? ? bound + size : bound
      end
      raise InvalidInputError, "range #{range} starts outside of size #{size}" unless start.between?(0, size)

      stop -= 1 if range.exclude_end? && range.end
      [start, ([stop, size - 1].min - start + 1).clamp(0, size)]
    end

    def as_indices(indices)
      Tensor === indices ? indices : Tensor.new(indices, :i64)
    end
  end
end
