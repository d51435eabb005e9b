# frozen_string_literal: true

require_relative "case"
require_relative "results"
require_relative "texts"
require_relative "workload"

module Bench
  # Where cases stand against the limits of a device.
  #   title   of the picture
  #   note    where the numbers are from
  #   slopes  what it reads: `{label:, rate:}`, the first is the one that cases are compared with
  #   roofs   what it multiplies: `{label:, rate:}`
  #   points  the cases
  #   groups  their headings, by key
  Standing = Struct.new(:title, :note, :slopes, :roofs, :points, :groups, keyword_init: true) do
    # @return [Numeric] bytes per second
    def bandwidth
      slopes.first[:rate]
    end

    # @return [Numeric] operations per second that a case could reach
    def limit(point)
      [point.intensity * bandwidth, point.roof].min
    end

    # @return [Float] how much of that it reaches
    def share(point)
      point.rate / limit(point)
    end

    # @return [Boolean] whether the memory is its nearer limit
    def reads_most?(point)
      point.intensity * bandwidth < point.roof
    end

    # @return [Float] bytes per second, of what the memory gives
    def bandwidth_share(point)
      point.bytes_per_second / bandwidth
    end
  end

  # A case.
  #   name, label, group  what it is called in results, in the picture, and whose colour it has
  #   operations, bytes   of one pass: a batch, a text, a prompt or a step
  #   passes              per second
  #   roof                operations per second of the arithmetic that it uses
  Point = Struct.new(:name, :label, :group, :operations, :bytes, :passes, :roof, keyword_init: true) do
    # @return [Float] operations for every byte of weights and cache that is read
    def intensity
      operations / bytes.to_f
    end

    # @return [Float] operations per second
    def rate
      operations * passes
    end

    # @return [Float]
    def bytes_per_second
      bytes * passes
    end
  end

  # The standing of a run of `rake bench`, against the measured limits.
  class CpuStanding
    MINILM = Workload::Encoder.new(layers: 6, hidden: 384, inner: 1536)
    SMOLLM = Workload::Decoder.new(layers: 30, hidden: 576, inner: 1536, heads: 9, key_heads: 3, head_size: 64,
                                   vocabulary: 49_152)
    # Tokens of one forward over many texts, as `Device::batch_tokens` of the engine has it.
    BATCH = 4096
    # Of MiniLM's tokenizer on the mixed texts, without the two special ones.
    TOKENS_PER_WORD = 1.412
    # Tokens of the prompts, by SmolLM2's tokenizer, and bytes of a number in the cache.
    PROMPT = 256
    OPENING = 14
    SHORT_OPENING = 8
    WIDTH = 4
    # An f32 product is eight products of bytes, one with a GGUF block two: of bf16 by tiles, of bytes by vectors.
    F32_PARTS = 8
    BLOCK_PLANES = 2
    # Bytes of a weight.
    WEIGHTS = { "bf16" => 2, "int8" => 1 }.freeze
    ROOFS = { int8_tiles: "int8 tiles", bf16: "bf16 tiles", block_tiles: "blocks by bf16 tiles (÷ 2)",
              f32: "f32 by int8 tiles (÷ 8)", int8_vectors: "int8 vectors",
              block_vectors: "blocks by int8 vectors (÷ 2)", f32_vectors: "f32 vectors" }.freeze
    # Methods by the names of cases, whose parts they are given.
    KINDS = { embeddings: /\Aembed_(f32|bf16|int8)(_without_amx)?\z/, text: /\Alatency_(\d+)\z/,
              generation: /\A(q\w+)_(prefill|decode)\z/, together: /\Adecode_together\z/ }.freeze
    GROUPS = { "embeddings" => "embeddings of many texts", "latency" => "one text", "prompts" => "prompts",
               "decoding" => "decoding" }.freeze

    # @param run [Hash] a run as its file has it
    # @param limits [Hash] those of {Limits}
    def initialize(run, limits)
      @run = run
      @limits = limits
      @reached = limits.fetch("operations_per_second")
    end

    # @return [Standing]
    def standing
      processor = @run.dig("machine", "processor")
      Standing.new(title: "#{processor}, #{@run["threads"]} threads: where cases stand", slopes: slopes,
                   roofs: ROOFS.filter_map { |key, label| { label: label, rate: roof(key) } if shown?(key) },
                   note: "Limits measured on #{@limits["date"][0, 10]}, cases on #{@run["date"][0, 10]}.",
                   points: @run.fetch("cases").filter_map { |outcome| point(outcome) }, groups: GROUPS)
    end

    # @return [Numeric] operations per second of a kind of work with what the processor has
    def roof(kind)
      f32 = @reached.fetch("f32_vectors")
      int8 = @reached.fetch("int8_vectors", f32)
      tiles = @reached.fetch("int8_tiles", int8)
      case kind
      when :f32 then tiles? ? tiles / F32_PARTS : f32
      when :bf16 then @reached["bf16_tiles"] || @reached["bf16_vectors"] || f32
      when :block_tiles then @reached.fetch("bf16_tiles", int8) / BLOCK_PLANES
      when :block_vectors then int8 / BLOCK_PLANES
      else { int8_tiles: tiles, int8_vectors: int8, f32_vectors: f32 }.fetch(kind)
      end
    end

    private

    def tiles?
      @reached.key?("int8_tiles")
    end

    # Without tiles some kinds of work are done by one kind of vectors.
    def shown?(key)
      case key
      when :int8_vectors, :block_vectors then @reached.key?("int8_vectors")
      when :f32_vectors then true
      else tiles?
      end
    end

    def slopes
      @limits.fetch("reading").values_at(0, -1).map do |one|
        label = one.equal?(@limits["reading"].first) ? "memory" : "#{one["mebibytes"]} MiB read again"
        { label: format("%<label>s, %<rate>.0f GB/s", label: label, rate: one["bytes_per_second"] / 1e9),
          rate: one["bytes_per_second"] }
      end
    end

    def point(outcome)
      value = outcome.dig("values", OURS, "median") or return
      KINDS.each do |kind, pattern|
        found = pattern.match(outcome["name"])
        return send(kind, outcome, *found.captures, value) if found
      end
      nil
    end

    def embeddings(outcome, type, without_tiles, tokens_per_second)
      kind = type == "int8" ? :int8_tiles : type.to_sym
      kind = type == "int8" ? :int8_vectors : :f32_vectors if without_tiles
      label = without_tiles ? "#{type} without tiles" : type
      Point.new(name: outcome["name"], label: label, group: "embeddings", bytes: encoder_bytes(type),
                operations: BATCH * MINILM.operations(mixed_length), passes: tokens_per_second / BATCH,
                roof: roof(kind))
    end

    def text(outcome, length, milliseconds)
      tokens = length.to_i
      Point.new(name: outcome["name"], label: "#{tokens} tokens, f32", group: "latency",
                operations: tokens * MINILM.operations(tokens), bytes: encoder_bytes("f32"),
                passes: 1e3 / milliseconds, roof: roof(:f32))
    end

    # f32 is three bytes where tiles multiply it.
    def encoder_bytes(type)
      MINILM.weights * WEIGHTS.fetch(type) { tiles? ? 3 : 4 }
    end

    # How long the text of a token is on average: long texts have more of them.
    def mixed_length
      lengths = Texts.mixed(400).map { |text| 2 + (TOKENS_PER_WORD * text.split.size) }
      lengths.sum { |length| length**2 } / lengths.sum
    end

    def generation(outcome, type, task, tokens_per_second)
      weights = @limits.fetch("weights").fetch(type.upcase)
      if task == "prefill"
        return Point.new(name: outcome["name"], label: type.upcase, group: "prompts", operations: SMOLLM.prompt(PROMPT),
                         bytes: weights, passes: tokens_per_second / PROMPT, roof: roof(:block_tiles))
      end
      context = OPENING + (96 / 2)
      Point.new(name: outcome["name"], label: type.upcase, group: "decoding", operations: SMOLLM.step(context),
                bytes: weights + SMOLLM.cache(context, WIDTH), passes: tokens_per_second, roof: roof(:block_vectors))
    end

    def together(outcome, tokens_per_second)
      texts = Texts::TOGETHER
      context = SHORT_OPENING + (64 / 2)
      Point.new(name: outcome["name"], label: "Q4_1, #{texts} at once", group: "decoding",
                operations: texts * SMOLLM.step(context), passes: tokens_per_second / texts, roof: roof(:block_tiles),
                bytes: @limits.fetch("weights").fetch("Q4_1") + (texts * SMOLLM.cache(context, WIDTH)))
    end
  end

  # The standing of a GPU, by numbers that were taken down in a file.
  class GpuStanding
    WIDTHS = { "f32" => 4, "f16" => 2, "bf16" => 2 }.freeze
    GROUPS = { "batches" => "many texts", "single" => "one text", "prompts" => "prompts", "decoding" => "decoding",
               "together" => "decoding many" }.freeze
    # Decoding computes in bf16, whatever its weights are.
    CACHE_WIDTH = 2

    # @param data [Hash] the file
    def initialize(data)
      @data = data
    end

    # @return [Standing]
    def standing
      days = @data["cases"].map { |one| one["date"] }.minmax.uniq
      Standing.new(title: "#{@data["device"]}: where cases stand", groups: GROUPS,
                   slopes: rates(@data["reading"], "bytes_per_second"),
                   roofs: rates(@data["roofs"], "operations_per_second"),
                   note: "Limits by NVIDIA and by bench/gpu, cases of #{days.join(" and ")}.",
                   points: @data["cases"].map { |one| point(one) })
    end

    private

    def rates(list, key)
      list.map { |one| { label: one["label"], rate: one[key] } }
    end

    def point(one)
      operations, bytes, passes = one["texts"] ? encoding(one) : generation(one)
      roof = @data["roofs"].find { |limit| limit["types"].include?(one["type"]) }
      Point.new(name: name(one), label: label(one), group: one["group"], operations: operations, bytes: bytes,
                passes: passes, roof: roof["operations_per_second"])
    end

    def encoding(one)
      model = Workload::Encoder.new(**shape(one))
      [one["texts"] * one["tokens"] * model.operations(one["tokens"]), model.weights * WIDTHS.fetch(one["type"]),
       1e3 / one["milliseconds"]]
    end

    def generation(one)
      model = Workload::Decoder.new(**shape(one))
      weights = one["weight_bytes"] || (model.weights * WIDTHS.fetch(one["type"]))
      return [model.prompt(one["tokens"]), weights, 1e3 / one["milliseconds"]] if one["tokens"]

      count, context = one.values_at("sequences", "context")
      [count * model.step(context), weights + (count * model.cache(context, CACHE_WIDTH)),
       one["tokens_per_second"] / count.to_f]
    end

    def shape(one)
      @data["models"].fetch(one["model"]).transform_keys(&:to_sym)
    end

    def name(one)
      [*one.values_at("group", "model", "type"), one["texts"] || one["sequences"], one["tokens"]].compact.join(" ")
    end

    def label(one)
      type = one["type"].sub(/\Aq.*/, &:upcase)
      return "#{one["sequences"]} at once" if one["group"] == "together"
      return "#{one["model"]} #{type}" if one["sequences"]

      amount = [one["texts"], one["tokens"]].compact.join(" × ")
      one["texts"] ? "#{one["model"]} #{type}, #{amount}" : "#{one["model"]} #{type}, #{amount} tokens"
    end
  end
end
