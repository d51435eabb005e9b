# frozen_string_literal: true

require "json"
require_relative "tiny_folder"

# The checkpoints of spec/fixtures/tiny and what their reference implementations made of them.
module TinyModels
  ROOT = TinyFolder.path
  IMAGES = File.expand_path("../fixtures/images", __dir__)

  module_function

  # @return [String] the directory of a checkpoint
  def path(name)
    File.join(ROOT, name)
  end

  # @return [Hash] a JSON file beside the checkpoint
  def record(name, file = "expected.json")
    JSON.parse(File.read(File.join(path(name), file), encoding: "UTF-8"))
  end

  # @return [Array<String>] the pictures that a checkpoint was asked about
  def pictures(name = "vit")
    record(name)["pictures"].map { |picture| File.join(IMAGES, picture) }
  end

  # @return [Array<Array<Float>>] a matrix of expected.safetensors, read without the library under test
  def rows(name, key)
    bytes = File.binread(File.join(path(name), "expected.safetensors"))
    length = bytes.unpack1("Q<")
    entry = JSON.parse(bytes[8, length]).fetch(key)
    raise "#{name}: #{key} is #{entry["dtype"]}" unless entry["dtype"] == "F32"

    first, last = entry.fetch("data_offsets")
    bytes[8 + length + first, last - first].unpack("e*").each_slice(entry.fetch("shape").last).to_a
  end
end
