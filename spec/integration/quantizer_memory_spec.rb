# frozen_string_literal: true

require "fileutils"
require "json"
require "tmpdir"

# Checkpoints of 32 and 195 MiB, whose largest tensors have 2 MiB: what is read must be released.
RSpec.describe "The memory of the quantizer", if: File.readable?("/proc/self/status") do
  around { |example| Dir.mktmpdir { |directory| Dir.chdir(directory) { example.run } } }

  width = 512
  block = { "self_attn.q_proj" => [width, width], "self_attn.k_proj" => [width, width],
            "self_attn.v_proj" => [width, width], "self_attn.o_proj" => [width, width] }
  dense = { "mlp.gate_proj" => [2 * width, width], "mlp.up_proj" => [2 * width, width],
            "mlp.down_proj" => [width, 2 * width] }

  # Tensors by name, those of a Llama or of Qwen3's mixture of experts.
  def shapes(width, layers)
    result = { "model.embed_tokens.weight" => [273, width], "model.norm.weight" => [width] }
    layers.each_with_index do |modules, number|
      modules.each { |name, shape| result["model.layers.#{number}.#{name}.weight"] = shape }
      %w[input_layernorm post_attention_layernorm].each do |name|
        result["model.layers.#{number}.#{name}.weight"] = [width]
      end
    end
    result
  end

  # A checkpoint with the configuration and the tokenizer of a fixture, and other words.
  def write_checkpoint(directory, base, shapes, words)
    FileUtils.mkdir_p(directory)
    source = TinyModels.path("decoders/#{base}")
    %w[tokenizer.json tokenizer_config.json].each { |file| FileUtils.cp(File.join(source, file), directory) }
    config = JSON.parse(File.read(File.join(source, "config.json")))
    File.write(File.join(directory, "config.json"), JSON.generate(config.merge(words)))
    write_weights(File.join(directory, "model.safetensors"), shapes)
  end

  # Tensors of f32: the same random numbers again and again.
  #
  # @return [Integer] their bytes
  def write_weights(path, shapes)
    random = Random.new(7)
    numbers = Array.new(1 << 16) { random.rand - 0.5 }.pack("e*")
    offset = 0
    header = shapes.transform_values do |shape|
      { dtype: "F32", shape: shape, data_offsets: [offset, offset += shape.inject(4, :*)] }
    end
    text = JSON.generate(header)
    File.open(path, "wb") do |file|
      file << [text.bytesize].pack("Q<") << text
      (offset / numbers.bytesize).times { file << numbers }
      file << numbers.byteslice(0, offset % numbers.bytesize)
    end
    offset
  end

  # @return [Float] the most MiB that a process had which did this
  def peak(call)
    output, errors, status = run_ruby(<<~RUBY)
      #{call}
      puts File.read("/proc/self/status")[/VmHWM:\\s+(\\d+)/, 1].to_i / 1024.0
    RUBY
    expect(status).to be_success, errors
    output.to_f
  end

  def llama(directory, width, layers)
    words = { "hidden_size" => width, "intermediate_size" => 2 * width, "num_hidden_layers" => layers.size,
              "num_attention_heads" => 8, "num_key_value_heads" => 8, "head_dim" => width / 8,
              "tie_word_embeddings" => true }
    write_checkpoint(directory, "llama", shapes(width, layers), words)
  end

  # A quantization in each direction: to blocks, and to dense weights.
  {
    "quantize" => 'Candle::Quantizer.quantize(%p, to: "m.gguf", type: "q8_0")',
    "convert" => "Candle::Quantizer.convert(%p, to: %p + '-dense', dtype: \"bf16\")"
  }.each do |name, call|
    it "does not grow with the layers (#{name})" do
      small = llama("small", width, [{ **block, **dense }] * 3)
      large = llama("large", width, [{ **block, **dense }] * 19)
      expect([small, large].map { |bytes| bytes >> 20 }).to match([30..40, 185..210])
      peaks = %w[small large].map { |directory| peak(format(call, directory, directory)) }
      expect(peaks.last - peaks.first).to be < 24
    end
  end

  it "does not grow with the experts of a layer" do
    experts = lambda do |count|
      modules = %w[gate_proj up_proj down_proj].flat_map do |name|
        Array.new(count) { |expert| ["mlp.experts.#{expert}.#{name}", [width, width]] }
      end
      { **block, "self_attn.q_norm" => [width / 8], "self_attn.k_norm" => [width / 8], "mlp.gate" => [count, width],
                 **modules.to_h }
    end
    sizes = { "few" => 8, "many" => 64 }.map do |directory, count|
      words = { "hidden_size" => width, "moe_intermediate_size" => width, "num_hidden_layers" => 1,
                "num_attention_heads" => 8, "num_key_value_heads" => 8, "head_dim" => width / 8,
                "num_local_experts" => count, "num_experts_per_tok" => 2, "tie_word_embeddings" => true }
      write_checkpoint(directory, "qwen3-moe-every", shapes(width, [experts[count]]), words)
    end
    expect(sizes.last - sizes.first).to be > 150 << 20
    # A stack of 64 experts has 64 MiB.
    call = 'Candle::Quantizer.quantize(%p, to: "m.gguf", type: "f32")'
    peaks = %w[few many].map { |directory| peak(format(call, directory)) }
    expect(peaks.last - peaks.first).to be < 24
  end
end
