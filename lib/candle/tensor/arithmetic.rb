# frozen_string_literal: true

module Candle
  class Tensor
    # @!macro [new] elementwise
    #   @return [Tensor] of the same shape
    #   @raise [InvalidInputError] for a tensor of integers: convert with `to_dtype(:f32)`

    # @!macro [new] elementwise_of_any
    #   @return [Tensor] of the same shape and type

    # @!macro [new] broadcasting
    #   @param other [Tensor, Numeric]
    #   @return [Tensor]
    #   @raise [InvalidInputError] when the shapes do not broadcast to one, with both

    # @!macro [new] comparison
    #   @param other [Tensor, Numeric]
    #   @return [Tensor] of u8: 1 where it holds, else 0
    #   @raise [InvalidInputError] when the shapes do not broadcast to one, with both

    # @example
    #   Candle::Tensor.new([0.0]).sin.to_a # => [0.0]
    # @macro elementwise
    def sin = _unary(:sin)

    # @example
    #   Candle::Tensor.new([0.0]).cos.to_a # => [1.0]
    # @macro elementwise
    def cos = _unary(:cos)

    # @example
    #   Candle::Tensor.new([0.0]).tanh.to_a # => [0.0]
    # @macro elementwise
    def tanh = _unary(:tanh)

    # The natural logarithm.
    #
    # @example
    #   Candle::Tensor.new([1.0]).log.to_a # => [0.0]
    # @macro elementwise
    def log = _unary(:log)

    # @example
    #   Candle::Tensor.new([0.0]).exp.to_a # => [1.0]
    # @macro elementwise
    def exp = _unary(:exp)

    # @example
    #   Candle::Tensor.new([3.0]).sqr.to_a # => [9.0]
    # @macro elementwise_of_any
    def sqr = _unary(:sqr)

    # @example
    #   Candle::Tensor.new([9.0]).sqrt.to_a # => [3.0]
    # @macro elementwise
    def sqrt = _unary(:sqrt)

    # One divided by each element.
    #
    # @example
    #   Candle::Tensor.new([4.0]).recip.to_a # => [0.25]
    # @macro elementwise
    def recip = _unary(:recip)

    # @example
    #   Candle::Tensor.new([-2.0]).abs.to_a # => [2.0]
    # @macro elementwise_of_any
    def abs = _unary(:abs)

    # @example
    #   Candle::Tensor.new([1.0, -2.0]).neg.to_a # => [-1.0, 2.0]
    # @macro elementwise_of_any
    # @raise [InvalidInputError] for a tensor of unsigned integers
    def neg = _unary(:neg)

    alias -@ neg

    # Zero for what is negative.
    #
    # @example
    #   Candle::Tensor.new([-1.0, 2.0]).relu.to_a # => [0.0, 2.0]
    # @macro elementwise_of_any
    def relu = _unary(:relu)

    # The Gaussian error linear unit in its exact form, by erf.
    #
    # @example
    #   Candle::Tensor.new([0.0]).gelu.to_a # => [0.0]
    # @macro elementwise
    def gelu = _gelu

    # `x * sigmoid(x)`
    #
    # @example
    #   Candle::Tensor.new([0.0]).silu.to_a # => [0.0]
    # @macro elementwise
    def silu = _unary(:silu)

    # `1 / (1 + exp(-x))`
    #
    # @example
    #   Candle::Tensor.new([0.0]).sigmoid.to_a # => [0.5]
    # @macro elementwise
    def sigmoid = _unary(:sigmoid)

    # @example
    #   Candle::Tensor.new([2.0, 3.0]).powf(2).to_a # => [4.0, 9.0]
    #
    # @param exponent [Numeric]
    # @macro elementwise
    def powf(exponent) = _power(Arguments.float(exponent, "exponent"))

    # @example
    #   Candle::Tensor.new([0.0, 0.0]).softmax(-1).to_a # => [0.5, 0.5]
    #
    # @param dim [Integer] the dimension along which the results sum up to 1
    # @macro elementwise
    def softmax(dim = -1) = _softmax(Arguments.integer(dim, "dim"))

    # Rows of the last dimension with mean 0 and variance 1, times `weight`, plus `bias`.
    #
    # @example
    #   x = Candle::Tensor.new([[1.0, 3.0]])
    #   one = Candle::Tensor.ones(2)
    #   x.layer_norm(one, one, 0.0).to_a # => [[0.0, 2.0]]
    #
    # @param weight [Tensor] as long as the last dimension
    # @param bias [Tensor, nil] as long as the last dimension
    # @param eps [Numeric] added to the variance
    # @macro elementwise
    def layer_norm(weight, bias = nil, eps = 1e-5) = _layer_norm(weight, bias, Arguments.float(eps, "eps"))

    # Rows of the last dimension with mean square 1, times `weight`.
    #
    # @example
    #   Candle::Tensor.new([[3.0, -3.0]]).rms_norm(Candle::Tensor.ones(2), 0.0).to_a # => [[1.0, -1.0]]
    #
    # @param weight [Tensor] as long as the last dimension
    # @param eps [Numeric] added to the mean square
    # @macro elementwise
    def rms_norm(weight, eps = 1e-6) = _rms_norm(weight, Arguments.float(eps, "eps"))

    # @example
    #   (Candle::Tensor.new([1, 2]) + 1).to_a # => [2.0, 3.0]
    # @macro broadcasting
    def +(other) = _arithmetic(:add, other)

    # @example
    #   (Candle::Tensor.new([1, 2]) - 1).to_a # => [0.0, 1.0]
    # @macro broadcasting
    def -(other) = _arithmetic(:sub, other)

    # Element by element; see {#matmul} for the product of matrices.
    #
    # @example
    #   (Candle::Tensor.new([1, 2]) * 3).to_a # => [3.0, 6.0]
    # @macro broadcasting
    def *(other) = _arithmetic(:mul, other)

    # Integers divide as Ruby's do, towards negative infinity.
    #
    # @example
    #   (Candle::Tensor.new([7, -7], :i64) / 2).to_a # => [3, -4]
    # @macro broadcasting
    def /(other) = _arithmetic(:div, other)

    alias broadcast_add +
    alias broadcast_sub -
    alias broadcast_mul *
    alias broadcast_div /

    # Lets a number stand on the left.
    #
    # @example
    #   (1 - Candle::Tensor.new([1, 2])).to_a # => [0.0, -1.0]
    #
    # @param number [Numeric]
    # @return [Array(Tensor, Tensor)]
    def coerce(number)
      [_as_scalar(number), self]
    end

    # @example
    #   Candle::Tensor.new([1, 2]).eq(2).to_a # => [0, 1]
    # @macro comparison
    def eq(other) = _compare(:eq, other)

    # @example
    #   Candle::Tensor.new([1, 2]).ne(2).to_a # => [1, 0]
    # @macro comparison
    def ne(other) = _compare(:ne, other)

    # @example
    #   Candle::Tensor.new([1, 2]).lt(2).to_a # => [1, 0]
    # @macro comparison
    def lt(other) = _compare(:lt, other)

    # @example
    #   Candle::Tensor.new([1, 2]).le(2).to_a # => [1, 1]
    # @macro comparison
    def le(other) = _compare(:le, other)

    # @example
    #   Candle::Tensor.new([1, 2]).gt(1).to_a # => [0, 1]
    # @macro comparison
    def gt(other) = _compare(:gt, other)

    # @example
    #   Candle::Tensor.new([1, 2]).ge(2).to_a # => [0, 1]
    # @macro comparison
    def ge(other) = _compare(:ge, other)

    # The product of matrices. Dimensions before the last two broadcast; a tensor of one dimension
    # is a row on the left, a column on the right.
    #
    # @example
    #   Candle::Tensor.new([[1, 2]]).matmul(Candle::Tensor.new([[3], [4]])).to_a # => [[11.0]]
    #
    # @param other [Tensor]
    # @return [Tensor]
    # @raise [InvalidInputError] when the shapes do not fit, with both
    def matmul(other) = _matmul(other)
  end
end
