# frozen_string_literal: true

Candle::Native.complete(:Tensor)

module Candle
  # An array of numbers of one type, with any number of dimensions, on any device.
  #
  # Tensors never change: every operation returns a new one, which shares memory where it can.
  # Operations broadcast as numpy's do. Two different types meet in the wider one, and floats win
  # over integers; a plain number takes the tensor's type, except that a Float makes an integer
  # tensor `f32`. Dimensions and indices may be negative to count from the end.
  #
  # As an Enumerable a tensor yields its numbers when it has one dimension, and otherwise the
  # tensors along the first.
  #
  # @example
  #   a = Candle::Tensor.new([[1.0, 2.0], [3.0, 4.0]])
  #   (a.matmul(a) + 1).to_a # => [[8.0, 11.0], [16.0, 23.0]]
  class Tensor
    include Enumerable
    include Uncopyable

    private

    def marshal_instead
      "send to_packed, shape and dtype, and read them with Tensor.from_packed"
    end
  end
end

require "candle/tensor/creation"
require "candle/tensor/conversion"
require "candle/tensor/arithmetic"
require "candle/tensor/reductions"
require "candle/tensor/shaping"
require "candle/tensor/indexing"
require "candle/tensor/display"
