# frozen_string_literal: true

require "json"

# Checkpoints of seeded numbers, in shapes that fixtures are too small for.
module WideWeights
  # @param path [String] a safetensors file
  # @param shapes [Hash{String => Array<Integer>}]
  # @param data [Array<String>, nil] their bytes; random ones without
  def self.write(path, shapes, seed: 1, data: nil)
    random = Random.new(seed)
    offset = 0
    header = shapes.transform_values do |shape|
      start = offset
      offset += 4 * shape.inject(:*)
      { "dtype" => "F32", "shape" => shape, "data_offsets" => [start, offset] }
    end
    text = JSON.generate(header)
    data ||= shapes.values.map { |shape| numbers(random, shape) }
    File.binwrite(path, [text.bytesize].pack("Q<") + text + data.join)
  end

  # Norms are about one.
  def self.numbers(random, shape)
    count = shape.inject(:*)
    values = Array.new(count) { shape.size == 1 ? 1 + (0.1 * random.rand) : 0.1 * (random.rand + random.rand - 1) }
    values.pack("e*")
  end
  private_class_method :numbers
end
