# frozen_string_literal: true

require "fileutils"
require "json"
require_relative "half_floats"
require_relative "tiny_folder"

# A tiny Llama whose matrices are quantized in groups of eight, as several libraries would store it. Scales are powers
# of two, so that all of them stand for the same numbers, which {.dense} has.
module SmallGroups
  GROUP = 8
  SOURCE = File.join(TinyFolder.path, "decoders", "llama")
  MATRIX = /\Amodel\.layers\.\d+\.(?:self_attn|mlp)\.\w+_proj\.weight\z/
  ZERO = 8
  # Where AWQ puts the codes of eight outputs.
  AWQ = [0, 2, 4, 6, 1, 3, 5, 7].freeze
  CONFIGS = {
    "gptq" => { "quant_method" => "gptq", "bits" => 4, "group_size" => GROUP, "desc_act" => false, "sym" => true },
    "awq" => { "quant_method" => "awq", "bits" => 4, "group_size" => GROUP, "zero_point" => true, "version" => "gemm" },
    "compressed-tensors" => {
      "quant_method" => "compressed-tensors", "format" => "pack-quantized", "quantization_status" => "compressed",
      "ignore" => ["lm_head"],
      "config_groups" => { "group_0" => { "targets" => ["Linear"], "weights" => {
        "num_bits" => 4, "type" => "int", "symmetric" => true, "strategy" => "group", "group_size" => GROUP
      } } }
    },
    "hqq" => { "quant_method" => "hqq", "skip_modules" => ["lm_head"], "quant_config" => { "weight_quant_params" => {
      "nbits" => 8, "group_size" => GROUP, "axis" => 1
    } } },
    "mlx" => { "group_size" => GROUP, "bits" => 4 }
  }.freeze

  # What `device_report` calls them, where that is another name.
  FORMATS = { "compressed-tensors" => "packed-int" }.freeze

  # A matrix: codes and scales, row after row.
  Matrix = Struct.new(:rows, :columns, :codes, :scales) do
    # The numbers of a part, turned.
    def turned(values, width)
      values.each_slice(width).to_a.transpose.flatten
    end

    def groups
      columns / GROUP
    end

    def sizes
      [rows, columns, groups]
    end

    def numbers
      codes.each_slice(GROUP).zip(scales).flat_map { |part, scale| part.map { |code| (code - ZERO) * scale } }
    end
  end

  module_function

  # @param method [String] of {CONFIGS}
  # @param path [String] a directory, which is made
  # @return [String] the directory with the whole checkpoint
  def write(method, path)
    key = method == "mlx" ? "quantization" : "quantization_config"
    folder(path, key => CONFIGS.fetch(method)) do |stem, matrix|
      public_send(method.tr("-", "_"), matrix).transform_keys { |part| "#{stem}.#{part}" }
    end
  end

  # @return [String] the directory with the same numbers in f32
  def dense(path)
    folder(path, {}) { |stem, matrix| { "#{stem}.weight" => of("F32", [matrix.rows, matrix.columns], matrix.numbers) } }
  end

  def folder(path, words)
    FileUtils.mkdir_p(path)
    %w[tokenizer.json tokenizer_config.json].each { |file| FileUtils.cp(File.join(SOURCE, file), path) }
    config = JSON.parse(File.read(File.join(SOURCE, "config.json"), encoding: "UTF-8"))
    File.write(File.join(path, "config.json"), JSON.generate(config.merge(words)))
    parts = numbers.map do |name, shape, values|
      next { name => of("F32", shape, values) } unless name.match?(MATRIX)

      yield(name.delete_suffix(".weight"), quantized(shape, values))
    end
    File.binwrite(File.join(path, "model.safetensors"), safetensors(parts.inject(:merge)))
    path
  end

  # Names, shapes and elements of the source.
  def numbers
    weights = Candle::Weights.open(SOURCE)
    weights.names.map do |name|
      tensor = weights.tensor(name, device: "cpu", dtype: :f32)
      [name, tensor.shape, tensor.to_packed.unpack("e*")]
    end
  end

  def quantized((rows, columns), values)
    parts = values.each_slice(GROUP).map do |part|
      scale = 2.0**Math.log2([part.map(&:abs).max, 1e-3].max / 7).ceil
      [part.map { |value| (value / scale).round.clamp(-7, 7) + ZERO }, scale]
    end
    Matrix.new(rows, columns, parts.flat_map(&:first), parts.map(&:last))
  end

  # [dtype, shape, bytes]
  def of(dtype, shape, values)
    packing = { "I32" => "L<*", "U32" => "L<*", "I64" => "q<*", "U8" => "C*", "F32" => "e*" }[dtype]
    [dtype, shape, packing ? values.pack(packing) : HalfFloats.pack(values, dtype)]
  end

  # Eight codes in each word, in an order.
  def words(codes, order = (0...8).to_a)
    codes.each_slice(8).map { |part| order.each_with_index.sum { |from, at| part[from] << (4 * at) } }
  end

  def gptq(matrix)
    rows, columns, groups = matrix.sizes
    { "qweight" => of("I32", [columns / 8, rows], matrix.turned(words(matrix.codes), columns / 8)),
      "qzeros" => of("I32", [groups, rows / 8], words([ZERO - 1] * (groups * rows))),
      "scales" => of("F16", [groups, rows], matrix.turned(matrix.scales, groups)),
      "g_idx" => of("I32", [columns], Array.new(columns) { |column| column / GROUP }) }
  end

  def awq(matrix)
    rows, columns, groups = matrix.sizes
    { "qweight" => of("I32", [columns, rows / 8], words(matrix.turned(matrix.codes, columns), AWQ)),
      "qzeros" => of("I32", [groups, rows / 8], words([ZERO] * (groups * rows), AWQ)),
      "scales" => of("F16", [groups, rows], matrix.turned(matrix.scales, groups)) }
  end

  def compressed_tensors(matrix)
    rows, columns, groups = matrix.sizes
    { "weight_packed" => of("I32", [rows, columns / 8], words(matrix.codes)),
      "weight_scale" => of("BF16", [rows, groups], matrix.scales),
      "weight_shape" => of("I64", [2], [rows, columns]) }
  end

  def hqq(matrix)
    count = matrix.rows * matrix.groups
    said = { "nbits" => 8, "group_size" => GROUP, "axis" => 1 }.transform_values { |value| of("I32", [], [value]) }
    { **said, "packing" => of("U8", [7], "8bit_u8".bytes),
              "W_q" => of("U8", [count, GROUP], matrix.codes), "shape" => of("I64", [2], [matrix.rows, matrix.columns]),
              "scale" => of("F32", [count, 1], matrix.scales), "zero" => of("F32", [count, 1], [ZERO.to_f] * count) }
  end

  def mlx(matrix)
    rows, columns, groups = matrix.sizes
    { "weight" => of("U32", [rows, columns / 8], words(matrix.codes)),
      "scales" => of("F16", [rows, groups], matrix.scales),
      "biases" => of("F16", [rows, groups], matrix.scales.map { |scale| -ZERO * scale }) }
  end

  def safetensors(tensors)
    offset = 0
    header = tensors.transform_values do |dtype, shape, bytes|
      first = offset
      { "dtype" => dtype, "shape" => shape, "data_offsets" => [first, offset += bytes.bytesize] }
    end
    text = JSON.generate(header)
    [text.bytesize].pack("Q<") + text.b + tensors.values.map(&:last).join
  end
end
