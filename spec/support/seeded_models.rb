# frozen_string_literal: true

require "fileutils"
require "json"
require "tmpdir"
require_relative "half_floats"

# The checkpoints of spec/fixtures/seeded, whose weights are a function of tensor name and seed, as
# spec/fixtures/make_seeded.py describes them.
module SeededModels
  FIXTURES = File.expand_path("../fixtures", __dir__)
  GOLDEN = 0x9E3779B97F4A7C15
  MASK = (1 << 64) - 1

  module_function

  # @return [Array<String>] model types, some with a variant after a dash
  def names
    Dir.children(File.join(FIXTURES, "seeded")).sort
  end

  # @return [Hash] a JSON file of a fixture
  def record(name, file = "expected.json")
    JSON.parse(File.read(File.join(FIXTURES, "seeded", name, file), encoding: "UTF-8"))
  end

  # Writes a whole checkpoint, config, weights and tokenizer, into a folder that the block may use.
  #
  # @yieldparam path [String]
  def checkpoint(name)
    Dir.mktmpdir("seeded") do |folder|
      write(name, folder)
      yield folder
    end
  end

  # @return [String] the folder, which then holds a whole checkpoint
  def write(name, folder)
    FileUtils.cp(File.join(FIXTURES, "seeded", name, "config.json"), folder)
    tokenizer = File.join(FIXTURES, record(name).fetch("tokenizer"))
    FileUtils.cp(%w[tokenizer.json tokenizer_config.json].map { |file| File.join(tokenizer, file) }, folder)
    File.binwrite(File.join(folder, "model.safetensors"), safetensors(record(name, "tensors.json")))
    folder
  end

  # @param known [Hash] elements that were made before, and those that are made now
  # @return [String] the bytes of a safetensors file
  def safetensors(description, known: {})
    header = {}
    data = description["tensors"].each_with_object("".b) do |(name, tensor), bytes|
      start = bytes.bytesize
      bytes << (known[[name, description["seed"], tensor]] ||= elements(name, description["seed"], tensor))
      header[name] = { dtype: tensor["dtype"], shape: tensor["shape"], data_offsets: [start, bytes.bytesize] }
    end
    header = JSON.generate(header)
    [header.bytesize].pack("Q<") + header.b + data
  end

  # A tensor may be a part of a parameter that is known by another name.
  #
  # @return [String] the little-endian elements of a tensor
  def elements(name, seed, tensor)
    return HalfFloats.pack(tensor["values"], tensor["dtype"]) if tensor.key?("values")

    numbers = stream(tensor.fetch("of", name), seed, tensor["shape"].inject(1, :*), tensor.fetch("first", 0))
    return numbers.map { |number| (number >> 11) % tensor["below"] }.pack("q<*") if tensor["dtype"] == "I64"

    center, spread = tensor.values_at("center", "spread")
    HalfFloats.pack(numbers.map { |number| center + (spread * ((number >> 40).fdiv(1 << 24) - 0.5)) }, tensor["dtype"])
  end

  # @return [Array<Integer>] splitmix64 from the hash of a tensor's name, without the first few numbers
  def stream(name, seed, count, first = 0)
    state = ((fnv1a(name) ^ (seed * GOLDEN & MASK)) + (first * GOLDEN)) & MASK
    Array.new(count) do
      state = (state + GOLDEN) & MASK
      value = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
      value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
      value ^ (value >> 31)
    end
  end

  # @return [Integer] the 64-bit FNV-1a hash of a name
  def fnv1a(name)
    name.each_byte.inject(0xCBF29CE484222325) { |hash, byte| ((hash ^ byte) * 0x100000001B3) & MASK }
  end
end
