# frozen_string_literal: true

require "json"
require_relative "half_floats"

# GGUF files whose tensors are views of a checkpoint's, as spec/fixtures/seeded_models/gguf_recipes.py describes them.
module GgufRecipes
  # What GGUF calls types of values, and how they are packed.
  KINDS = { "uint32" => [4, "L<"], "int32" => [5, "l<"], "float32" => [6, "e"], "bool" => [7, "C"] }.freeze
  STRING = 8
  ARRAY = 9
  DTYPES = { "F32" => 0, "F16" => 1, "BF16" => 30 }.freeze
  ALIGNMENT = 32

  module_function

  # Writes NAME.gguf beside NAME.gguf.json.
  #
  # @param folder [String] where the checkpoint is looked for that the description names
  # @param lists [Hash] long values of metadata by name
  def write(file, folder, lists)
    description = JSON.parse(File.read(file, encoding: "UTF-8"))
    sources = tensors(File.join(folder, description.fetch("checkpoint"), "model.safetensors"))
    File.binwrite(file.delete_suffix(".json"), bytes(description, sources, lists))
  end

  # @return [Hash] arrays of numbers by the names of a safetensors file's tensors
  def tensors(path)
    file = File.binread(path)
    length = file.unpack1("Q<")
    JSON.parse(file[8, length]).except("__metadata__").transform_values do |entry|
      first, last = entry["data_offsets"]
      HalfFloats.unpack(file[8 + length + first, last - first], entry["dtype"])
    end
  end

  def bytes(description, sources, lists)
    keys = description["metadata"].map { |name, (kind, value)| string(name) + typed(kind, value, lists) }
    data = "".b
    tensors = description["tensors"].map do |name, recipe|
      place = data.bytesize
      data << padded(HalfFloats.pack(cooked(recipe, sources), recipe["dtype"]))
      string(name) + entry(recipe, place)
    end
    padded(["GGUF", 3, tensors.size, keys.size].pack("a4L<Q<Q<") + [*keys, *tensors].join) + data
  end

  def entry(recipe, place)
    shape = recipe["shape"]
    [shape.size, *shape, DTYPES.fetch(recipe["dtype"]), place].pack("L<Q<#{shape.size}L<Q<")
  end

  def padded(bytes)
    bytes + ("\0" * (-bytes.bytesize % ALIGNMENT))
  end

  def string(text)
    [text.bytesize].pack("Q<") + text.b
  end

  def typed(kind, value, lists)
    inner = kind.delete_prefix("array ")
    value = lists.fetch(value["list"]) if value.is_a?(Hash)
    return [number(kind)].pack("L<") + value_bytes(kind, value) if inner == kind

    [ARRAY, number(inner), value.size].pack("L<L<Q<") + value.map { |one| value_bytes(inner, one) }.join
  end

  def number(kind)
    kind == "string" ? STRING : KINDS.fetch(kind).first
  end

  def value_bytes(kind, value)
    return string(value) if kind == "string"

    value = value ? 1 : 0 if kind == "bool"
    [value].pack(KINDS.fetch(kind).last)
  end

  # @return [Array<Float>] the elements of a tensor
  def cooked(recipe, sources)
    return recipe["values"] if recipe.key?("values")

    added = recipe.fetch("add", 0)
    all = recipe["from"].flat_map do |source, *view|
      elements = sources.fetch(source)
      view.empty? ? elements : viewed(elements, *view)
    end
    added.zero? ? all : all.map { |element| element + added }
  end

  def viewed(elements, first, extents)
    places = extents.inject([first]) do |rows, (count, stride)|
      rows.flat_map { |place| Array.new(count) { |number| place + (number * stride) } }
    end
    elements.values_at(*places)
  end
end
