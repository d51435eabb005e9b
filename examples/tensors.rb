# frozen_string_literal: true

# Tensors: build, combine, reduce, look inside.
require "candle"

weights = Candle::Tensor.new([[0.5, -1.0, 2.0], [1.5, 0.0, -0.5]])
input = Candle::Tensor.new([1.0, 2.0, 3.0]).reshape([3, 1])

output = weights.matmul(input)
puts "shape #{output.shape.inspect}: #{output.to_a.inspect}"

probabilities = output.flatten_all.softmax(0)
puts "softmax #{probabilities.to_a.map { |value| value.round(4) }.inspect}"

raise "the probabilities must add up to one" unless (probabilities.to_a.sum - 1).abs < 1e-6
