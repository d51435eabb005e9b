# frozen_string_literal: true

module Candle
  class Tensor
    # @!macro [new] reduction
    #   @param axis [Integer, Array<Integer>, nil] the dimensions to reduce; nil stands for all
    #   @param keepdim [Boolean] whether they stay, with size 1
    #   @return [Tensor]

    # @!macro [new] reduction_of_one
    #   @param dim [Integer]
    #   @return [Tensor] with size 1 at `dim`
    #   @raise [InvalidInputError] when there are no elements to choose from

    # Integers sum up as i64.
    #
    # @example
    #   Candle::Tensor.new([[1, 2], [3, 4]]).sum(0).to_a # => [4.0, 6.0]
    # @macro reduction
    def sum(axis = nil, keepdim: false)
      _reduce(:sum, axes(axis), keepdim)
    end

    # The mean of integers is f32, that of nothing NaN.
    #
    # @example
    #   Candle::Tensor.new([[1, 2], [3, 4]]).mean(1).to_a # => [1.5, 3.5]
    # @macro reduction
    def mean(axis = nil, keepdim: false)
      _reduce(:mean, axes(axis), keepdim)
    end

    # The variance of a sample, or of a whole population.
    #
    # @example
    #   Candle::Tensor.new([1, 2, 3, 4, 5]).var(0).item # => 2.5
    #   Candle::Tensor.new([1, 2, 3, 4, 5]).var(0, unbiased: false).item # => 2.0
    #
    # @param unbiased [Boolean] whether to divide by one less than the number of elements
    # @macro reduction
    def var(axis = nil, unbiased: true, keepdim: false)
      _reduce(unbiased ? :var : :population_var, axes(axis), keepdim)
    end

    # The square root of the sum of squares.
    #
    # @example
    #   Candle::Tensor.new([3, 4]).norm.item # => 5.0
    # @macro reduction
    def norm(axis = nil, keepdim: false)
      _reduce(:norm, axes(axis), keepdim)
    end

    # @example
    #   Candle::Tensor.new([[1, 2], [3, 4]]).sum_all.item # => 10.0
    #
    # @return [Tensor] of rank 0: the sum of all elements
    def sum_all = sum

    # @example
    #   Candle::Tensor.new([[1, 2], [3, 4]]).mean_all.item # => 2.5
    #
    # @return [Tensor] of rank 0: the mean of all elements
    def mean_all = mean

    # @example
    #   Candle::Tensor.new([[1, 5], [7, 3]]).max_keepdim(1).to_a # => [[5.0], [7.0]]
    # @macro reduction_of_one
    def max_keepdim(dim) = _reduce(:max, axes([dim]), true)

    # @example
    #   Candle::Tensor.new([[1, 5], [7, 3]]).min_keepdim(1).to_a # => [[1.0], [3.0]]
    # @macro reduction_of_one
    def min_keepdim(dim) = _reduce(:min, axes([dim]), true)

    # @example
    #   Candle::Tensor.new([[1, 5], [7, 3]]).argmax_keepdim(1).to_a # => [[1], [0]]
    # @macro reduction_of_one
    def argmax_keepdim(dim) = _reduce(:argmax, axes([dim]), true)

    # @example
    #   Candle::Tensor.new([[1, 5], [7, 3]]).argmin_keepdim(1).to_a # => [[0], [1]]
    # @macro reduction_of_one
    def argmin_keepdim(dim) = _reduce(:argmin, axes([dim]), true)

    # Where the greatest element is, the first of equals; NaN counts as greatest.
    #
    # @example
    #   Candle::Tensor.new([[1, 5], [7, 3]]).argmax(1).to_a # => [1, 0]
    #   Candle::Tensor.new([[1, 5], [7, 3]]).argmax.item # => 2
    #
    # @param dim [Integer, nil] nil counts through all elements in row-major order
    # @return [Tensor] of u32
    # @raise [InvalidInputError] when there are no elements to choose from
    def argmax(dim = nil) = _reduce(:argmax, axes(dim), false)

    # Where the least element is, the first of equals; NaN counts as least.
    #
    # @example
    #   Candle::Tensor.new([[1, 5], [7, 3]]).argmin(1).to_a # => [0, 1]
    #
    # @param (see #argmax)
    # @return [Tensor] of u32
    # @raise [InvalidInputError] when there are no elements to choose from
    def argmin(dim = nil) = _reduce(:argmin, axes(dim), false)

    private

    def axes(axis)
      case axis
      when nil then nil
      when Array then axis.map { |one| Arguments.integer(one, "an axis") }
      else [Arguments.integer(axis, "an axis")]
      end
    end
  end
end
