# frozen_string_literal: true

module Tasks
  # llama2.c's format (a header of seven integers, all weights in f32, then the vocabulary) as a GGUF file.
  module Llama2c
    HEADER = %i[hidden inner layers heads kv_heads vocabulary positions].freeze
    # GGUF's numbers for types of values, and for what a token is.
    TYPES = { u32: 4, i32: 5, f32: 6, bool: 7, string: 8, array: 9 }.freeze
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    BYTE = 6
    ALIGNMENT = 32

    module_function

    # @param source [String] a file with a model and the vocabulary behind it
    # @param target [String] the GGUF file to write
    def convert(source, target)
      File.open(source, "rb") do |file|
        sizes = HEADER.zip(file.read(28).unpack("l<7")).to_h
        raise "#{source}: a head of its own is not supported" if sizes[:vocabulary].negative?

        tensors = tensors(sizes, file.pos)
        keys = keys(sizes, tokens(file, tensors, sizes))
        File.open(target, "wb") { |output| write(output, keys, tensors, file) }
      end
    end

    # Names with shapes (rows, columns) and offsets in the file.
    def tensors(sizes, start)
      layers, hidden, inner = sizes.values_at(:layers, :hidden, :inner)
      narrow = hidden / sizes[:heads] * sizes[:kv_heads]
      shapes = [["token_embd", sizes[:vocabulary], hidden]]
      { "attn_norm" => [hidden], "attn_q" => [hidden, hidden], "attn_k" => [narrow, hidden],
        "attn_v" => [narrow, hidden], "attn_output" => [hidden, hidden], "ffn_norm" => [hidden],
        "ffn_gate" => [inner, hidden], "ffn_down" => [hidden, inner],
        "ffn_up" => [inner, hidden] }.each do |name, shape|
        layers.times { |layer| shapes << ["blk.#{layer}.#{name}", *shape] }
      end
      shapes << ["output_norm", hidden]
      shapes.map do |name, *shape|
        start += 4 * shape.inject(:*)
        ["#{name}.weight", shape, start - (4 * shape.inject(:*))]
      end
    end

    # Tokens with scores and kinds; the tables of rotations in between are not needed.
    def tokens(file, tensors, sizes)
      _, shape, offset = tensors.last
      file.seek(offset + (4 * shape.first) + (4 * sizes[:positions] * sizes[:hidden] / sizes[:heads]) + 4)
      Array.new(sizes[:vocabulary]) do |id|
        score, length = file.read(8).unpack("el<")
        text = file.read(length).force_encoding("UTF-8")
        kind = { 0 => UNKNOWN, 1 => CONTROL, 2 => CONTROL }.fetch(id) { id < 259 ? BYTE : NORMAL }
        [token(id, text, kind), score, kind]
      end
    end

    def token(id, text, kind)
      case kind
      when BYTE then format("<0x%02X>", id - 3)
      when CONTROL then text.strip
      else text.tr(" ", "▁")
      end
    end

    def keys(sizes, tokens)
      { "general.architecture" => string("llama"), "llama.context_length" => u32(sizes[:positions]),
        "llama.embedding_length" => u32(sizes[:hidden]), "llama.block_count" => u32(sizes[:layers]),
        "llama.feed_forward_length" => u32(sizes[:inner]), "llama.attention.head_count" => u32(sizes[:heads]),
        "llama.attention.head_count_kv" => u32(sizes[:kv_heads]),
        "llama.rope.dimension_count" => u32(sizes[:hidden] / sizes[:heads]),
        "llama.attention.layer_norm_rms_epsilon" => [TYPES[:f32], [1e-5].pack("e")], **vocabulary_keys(tokens) }
    end

    def vocabulary_keys(tokens)
      texts, scores, kinds = tokens.transpose
      { "tokenizer.ggml.model" => string("llama"),
        "tokenizer.ggml.tokens" => array(:string, texts.map { |text| bytes(text) }),
        "tokenizer.ggml.scores" => array(:f32, scores.map { |score| [score].pack("e") }),
        "tokenizer.ggml.token_type" => array(:i32, kinds.map { |kind| [kind].pack("l<") }),
        "tokenizer.ggml.unknown_token_id" => u32(0), "tokenizer.ggml.bos_token_id" => u32(1),
        "tokenizer.ggml.eos_token_id" => u32(2) }
    end

    def write(output, keys, tensors, file)
      output << "GGUF" << [3, tensors.size, keys.size].pack("L<Q<Q<")
      keys.each { |name, (type, value)| output << bytes(name) << [type].pack("L<") << value }
      output << descriptions(tensors)
      tensors.each { |_, shape, start| copy(output, file, start, 4 * shape.inject(:*)) }
    end

    # Names and shapes, the innermost first, with type 0 (f32) and the offset from the first tensor.
    def descriptions(tensors)
      offset = 0
      tensors.map do |name, shape, _|
        entry = [shape.size, *shape.reverse, 0, offset].pack("L<#{"Q<" * shape.size}L<Q<")
        offset += padded(4 * shape.inject(:*))
        bytes(name) + entry
      end.join
    end

    def copy(output, file, start, length)
      output << ("\0" * (padded(output.pos) - output.pos))
      IO.copy_stream(file, output, length, start)
    end

    def padded(size)
      (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT
    end

    def u32(value)
      [TYPES[:u32], [value].pack("L<")]
    end

    def string(text)
      [TYPES[:string], bytes(text)]
    end

    def array(type, values)
      [TYPES[:array], [TYPES[type], values.size].pack("L<Q<") + values.join]
    end

    def bytes(text)
      [text.bytesize].pack("Q<") + text.b
    end
  end
end
