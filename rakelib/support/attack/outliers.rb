# frozen_string_literal: true

require "fileutils"
require "json"

# A small encoder, deep enough for every kernel of f32, in which some channels become outliers that cannot change the
# result: the other factor of their products is 0.
class OutlierModel
  HIDDEN = 128
  INTERMEDIATE = 256
  LAYER = "encoder.layer.0"
  UP = "#{LAYER}.intermediate.dense".freeze
  DOWN = "#{LAYER}.output.dense".freeze
  TEXT = "the quick fox sees a small dog"
  # How far the vector may move, relative to its length.
  ALLOWED = 3e-6

  # @return [String] where it lies
  attr_reader :folder

  # @param source [String] the checkpoint whose tokenizer and settings it takes
  # @param folder [String] where it is written
  def initialize(source, folder)
    @folder = folder
    FileUtils.mkdir_p(folder)
    FileUtils.cp_r(File.join(source, "."), folder)
    change("config.json", "hidden_size" => HIDDEN, "intermediate_size" => INTERMEDIATE, "num_hidden_layers" => 1)
    change("1_Pooling/config.json", "embedding_dimension" => HIDDEN)
    @random = Random.new(1)
    @tensors = shapes.to_h { |name, shape| [name, [shape, values(name, shape)]] }
    write { |_, _, numbers| numbers }
  end

  # @raise [RuntimeError] if the outliers change the vector
  def check(random)
    channels = Array.new(1 + random.rand(7)) { random.rand(INTERMEDIATE) }.uniq
    size = 10**(6 * random.rand)
    in_weights = random.rand(2).zero?
    plain = embed(channels, in_weights, 1.0)
    found = embed(channels, in_weights, size)
    moved = Math.sqrt(plain.zip(found).sum { |a, b| (a - b)**2 } / plain.sum { |a| a**2 })
    return if moved <= ALLOWED

    where = in_weights ? "weights" : "activations"
    raise "#{channels.size} outliers of #{format("%.0e", size)} in #{where} move the vector by #{format("%.1e", moved)}"
  end

  private

  def change(file, values)
    path = File.join(@folder, file)
    File.write(path, JSON.generate(JSON.parse(File.read(path)).merge(values)))
  end

  def shapes
    lengths = { 32 => HIDDEN, 48 => INTERMEDIATE }
    header(File.binread(File.join(@folder, "model.safetensors")))
      .reject { |name, _| name == "__metadata__" || name.start_with?("encoder.layer.1") }
      .transform_values { |entry| entry["shape"].map { |length| lengths.fetch(length, length) } }
  end

  def header(bytes) = JSON.parse(bytes[8, bytes.unpack1("Q<")])

  def values(name, shape)
    return Array.new(shape.first, 1.0) if name.end_with?("LayerNorm.weight")

    Array.new(shape.inject(:*)) { @random.rand(-0.2..0.2) }
  end

  # With outliers of a size in the activations between the two layers, whose weights are 0, or the other way round.
  def embed(channels, in_weights, size)
    up, down = in_weights ? [0.0, size] : [size, 0.0]
    write do |name, shape, numbers|
      case name
      when "#{UP}.weight" then scale_rows(numbers, shape.last, channels, up)
      when "#{UP}.bias" then scale_rows(numbers, 1, channels, up)
      when "#{DOWN}.weight" then scale_columns(numbers, shape.last, channels, down)
      else numbers
      end
    end
    Candle::EmbeddingModel.from_pretrained(@folder, device: "cpu").embed(TEXT).to_a.flatten
  end

  def scale_rows(numbers, width, channels, scale)
    numbers.each_slice(width).with_index.flat_map do |row, number|
      channels.include?(number) ? row.map { |value| value * scale } : row
    end
  end

  def scale_columns(numbers, width, channels, scale)
    numbers.each_slice(width).flat_map do |row|
      row.dup.tap { |copy| channels.each { |channel| copy[channel] *= scale } }
    end
  end

  # By another file: a model that is still open may read the one before.
  def write
    offset = 0
    entries = {}
    parts = @tensors.map do |name, (shape, numbers)|
      bytes = yield(name, shape, numbers).pack("e*")
      entries[name] = { dtype: "F32", shape: shape, data_offsets: [offset, offset += bytes.bytesize] }
      bytes
    end
    text = JSON.generate(entries)
    text += " " * (-text.bytesize % 8)
    path = File.join(@folder, "model.safetensors")
    File.delete(path)
    File.binwrite(path, [text.bytesize].pack("Q<") + text + parts.join)
  end
end
