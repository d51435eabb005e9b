# frozen_string_literal: true

require "fileutils"
require "json"

module Candle
  # A checkpoint whose quantized weights are written as dense ones.
  #
  # @api private
  class DenseWriter
    # The types of safetensors and of configurations, and the bytes of an element.
    TYPES = { "f32" => ["F32", "float32", 4], "f16" => ["F16", "float16", 2], "bf16" => ["BF16", "bfloat16", 2] }.freeze
    # What is not copied.
    WEIGHTS = /\.(safetensors|safetensors\.index\.json|bin|gguf|pt|pth)\z/
    private_constant :WEIGHTS

    def initialize(directory, dtype)
      @directory = directory
      @dtype = dtype
      @weights = Weights.open(directory)
    end

    # @param path [String] a directory that does not exist
    # @param progress [Proc, nil]
    # @return [String] the directory
    def write(path, progress)
      staged = "#{path}.#{Process.pid}.part"
      FileUtils.mkdir_p(staged)
      copy(staged)
      File.open(File.join(staged, "model.safetensors"), "wb") { |file| write_weights(file, progress) }
      File.rename(staged, path)
      path
    ensure
      FileUtils.rm_rf(staged) if staged
    end

    private

    def copy(staged)
      Dir.children(@directory).grep_v(WEIGHTS).each do |name|
        from = File.join(@directory, name)
        FileUtils.cp(from, staged) if File.file?(from)
      end
      file = File.join(staged, "config.json")
      config = JSON.parse(File.read(file, encoding: "UTF-8"))
      [config, config["text_config"]].grep(Hash).each do |part|
        %w[quantization_config compression_config quantization].each { |key| part.delete(key) }
        %w[dtype torch_dtype].each { |key| part[key] = TYPES[@dtype][1] if part.key?(key) }
      end
      File.write(file, "#{JSON.pretty_generate(config)}\n")
    end

    def write_weights(file, progress)
      name, _, size = TYPES[@dtype]
      start = 0
      header = @weights.names.to_h do |tensor|
        shape = @weights.info(tensor)[:shape]
        bytes = shape.inject(size, :*)
        entry = { dtype: name, shape: shape, data_offsets: [start, start += bytes] }
        [tensor, entry]
      end
      text = JSON.generate(header.merge("__metadata__" => { format: "pt" }))
      text += " " * (-text.bytesize % 8)
      file << [text.bytesize].pack("Q<") << text
      header.each_key.with_index(1) do |tensor, done|
        # Ruby would keep the bytes until it collects garbage.
        @weights.encoded(tensor, @dtype).tap { |bytes| file << bytes }.clear
        progress&.call(done, header.size)
      end
      file.fsync
    end
  end
end
