# frozen_string_literal: true

module Candle
  # What a checkpoint of transformers is called in a GGUF file: the keys of its configuration and the names of its
  # tensors.
  #
  # @api private
  class GgufLayout
    # By model type: the architecture, and whether rows that are rotated together become neighbours.
    ARCHITECTURES = {
      "llama" => ["llama", true], "mistral" => ["llama", true], "smollm" => ["llama", true],
      "mixtral" => ["llama", true], "granite" => ["granite", true],
      "qwen2" => ["qwen2", false], "qwen3" => ["qwen3", false], "qwen3_moe" => ["qwen3moe", false]
    }.freeze
    MODULES = {
      "self_attn.q_proj" => "attn_q", "self_attn.k_proj" => "attn_k", "self_attn.v_proj" => "attn_v",
      "self_attn.o_proj" => "attn_output", "self_attn.q_norm" => "attn_q_norm", "self_attn.k_norm" => "attn_k_norm",
      "mlp.gate_proj" => "ffn_gate", "mlp.up_proj" => "ffn_up", "mlp.down_proj" => "ffn_down",
      "mlp.gate" => "ffn_gate_inp", "block_sparse_moe.gate" => "ffn_gate_inp",
      "input_layernorm" => "attn_norm", "post_attention_layernorm" => "ffn_norm"
    }.freeze
    # Experts of a layer, which become one tensor for each part.
    EXPERT = /\Amodel\.layers\.(?<layer>\d+)\.(?:mlp|block_sparse_moe)\.experts\.(?<number>\d+)\.(?<part>\w+)\.weight\z/
    EXPERT_PARTS = { "gate_proj" => "ffn_gate_exps", "w1" => "ffn_gate_exps", "up_proj" => "ffn_up_exps",
                     "w3" => "ffn_up_exps", "down_proj" => "ffn_down_exps", "w2" => "ffn_down_exps" }.freeze
    # What Granite multiplies by.
    FACTORS = { "attention.scale" => "attention_multiplier", "embedding_scale" => "embedding_multiplier",
                "residual_scale" => "residual_multiplier", "logit_scale" => "logits_scaling" }.freeze
    WHOLE = { "model.embed_tokens" => "token_embd", "model.norm" => "output_norm", "lm_head" => "output" }.freeze
    # Tensors that are functions of the configuration.
    COMPUTED = /rotary_emb\.inv_freq\z|\.masked_bias\z/
    private_constant :MODULES, :EXPERT, :EXPERT_PARTS, :FACTORS, :WHOLE, :COMPUTED

    attr_reader :architecture

    # @return [Array<String>] the model types that can be written
    def self.model_types
      ARCHITECTURES.keys
    end

    def initialize(config, weights, file)
      @config = config
      @weights = weights
      @file = file
      @architecture, @neighbours = ARCHITECTURES.fetch(config["model_type"]) do
        raise UnsupportedModelError, "#{file}: models of the type #{config["model_type"].inspect} can't be written " \
                                     "as GGUF files; those of #{ARCHITECTURES.keys.join(", ")} can"
      end
      check_window
      check_experts
    end

    def layer_count
      size("num_hidden_layers")
    end

    # How many queries share a key.
    def group_count
      size("num_attention_heads") / key_heads
    end

    def vocabulary_size
      @weights.info("model.embed_tokens.weight")&.dig(:shape, 0) ||
        raise(CorruptModelError, "#{@weights.files.first}: tensor \"model.embed_tokens.weight\" is missing")
    end

    # Whether the output has the token table's weights.
    def tied?
      !@weights.key?("lm_head.weight") || (@config["tie_word_embeddings"] && same_head?)
    end

    # @return [Hash{String => Object}]
    def metadata
      keys = {
        "vocab_size" => u32(vocabulary_size), "context_length" => u32(size("max_position_embeddings")),
        "embedding_length" => u32(size("hidden_size")), "feed_forward_length" => u32(size("intermediate_size")),
        "block_count" => u32(layer_count), "attention.head_count" => u32(size("num_attention_heads")),
        "attention.head_count_kv" => u32(key_heads), "attention.layer_norm_rms_epsilon" => epsilon,
        "attention.key_length" => u32(head_size), "attention.value_length" => u32(head_size),
        "rope.freq_base" => theta, "rope.dimension_count" => u32(head_size)
      }
      keys.merge(scaling, experts, factors).transform_keys { |key| "#{architecture}.#{key}" }
    end

    # @return [Array<Hash>] `name:`, `shape:`, `from:` (several of experts) and, of sorted rows, `heads:`; `data:` of
    #   computed ones
    def tensors
      found = @weights.names.grep_v(COMPUTED).reject { |name| name == "lm_head.weight" && tied? }
      experts, found = found.partition { |name| name.match?(EXPERT) }
      found = found.map { |name| tensor(name) } + stacks(experts)
      factors = frequency_factors
      found.unshift(name: "rope_freqs.weight", shape: [factors.size], data: factors.pack("e*")) if factors
      found.sort_by { |one| order(one[:name]) }
    end

    private

    # GGUF files of these architectures say nothing of windows.
    def check_window
      window = @config["sliding_window"] or return
      return if @config["use_sliding_window"] == false || window >= size("max_position_embeddings")
      return if @architecture != "llama" && !@config["use_sliding_window"]

      raise UnsupportedModelError, "#{@file}: attention in windows of #{window} tokens has no GGUF form for this model"
    end

    # GGUF files of this architecture have experts in all layers.
    def check_experts
      return unless @architecture == "qwen3moe"
      return if Array(@config["mlp_only_layers"]).empty? && [nil, 1].include?(@config["decoder_sparse_step"])

      raise UnsupportedModelError, "#{@file}: layers without experts (mlp_only_layers) have no GGUF form for this model"
    end

    def expert_count
      @config["num_local_experts"] || @config["num_experts"]
    end

    def experts
      return {} unless @weights.names.any? { |name| name.match?(EXPERT) }

      keys = { "expert_count" => u32(expert_count), "expert_used_count" => u32(size("num_experts_per_tok")) }
      width = @config["moe_intermediate_size"]
      width ? keys.merge("expert_feed_forward_length" => u32(width)) : keys
    end

    def factors
      return {} unless @architecture == "granite"

      FACTORS.transform_values { |key| Float(@config[key] || 1.0) }
    end

    def stacks(names)
      groups = names.group_by { |name| name.match(EXPERT).values_at(:layer, :part) }
      groups.map do |(layer, part), members|
        members = members.sort_by { |name| Integer(name.match(EXPERT)[:number]) }
        unless members.size == expert_count
          raise CorruptModelError, "#{@file}: layer #{layer} has #{members.size} experts instead of #{expert_count}"
        end

        { from: members, name: "blk.#{layer}.#{EXPERT_PARTS.fetch(part)}.weight",
          shape: [members.size, *@weights.info(members.first)[:shape]] }
      end
    end

    def u32(value)
      GgufWriter.u32(value)
    end

    def size(key)
      value = @config[key]
      return value if value.is_a?(Integer) && value.positive?

      raise CorruptModelError, "#{@file}: #{key} must be a positive number, not #{value.inspect}"
    end

    def key_heads
      @config["num_key_value_heads"] || size("num_attention_heads")
    end

    def head_size
      @config["head_dim"] || (size("hidden_size") / size("num_attention_heads"))
    end

    def epsilon
      Float(@config["rms_norm_eps"] || 1e-6)
    end

    def rope
      @config["rope_parameters"] || @config["rope_scaling"] || {}
    end

    def theta
      Float(@config["rope_theta"] || rope["rope_theta"] || 10_000.0)
    end

    def scaling
      case rope["rope_type"] || rope["type"]
      when nil, "default", "llama3" then {}
      when "linear" then { "rope.scaling.type" => "linear", "rope.scaling.factor" => Float(rope["factor"]) }
      when "yarn"
        original = rope["original_max_position_embeddings"] || size("max_position_embeddings")
        { "rope.scaling.type" => "yarn", "rope.scaling.factor" => Float(rope["factor"]),
          "rope.scaling.original_context_length" => u32(original) }
      else
        raise UnsupportedModelError, "#{@file}: rotary positions of the type " \
                                     "#{(rope["rope_type"] || rope["type"]).inspect} have no GGUF form"
      end
    end

    # Llama 3 divides low frequencies.
    def frequency_factors
      return unless (rope["rope_type"] || rope["type"]) == "llama3"

      Array.new(head_size / 2) { |at| frequency_factor(2 * Math::PI * (theta**(2.0 * at / head_size))) }
    end

    def frequency_factor(wave)
      keys = %w[factor low_freq_factor high_freq_factor original_max_position_embeddings]
      factor, low, high, context = rope.values_at(*keys).map { |number| Float(number) }
      return 1.0 if wave < context / high
      return factor if wave > context / low

      smooth = ((context / wave) - low) / (high - low)
      1 / (((1 - smooth) / factor) + smooth)
    end

    def tensor(name)
      stem, _, ending = name.rpartition(".")
      result = { from: name, name: "#{renamed(stem, name)}.#{ending}", shape: @weights.info(name)[:shape] }
      heads = { "attn_q" => size("num_attention_heads"), "attn_k" => key_heads }[result[:name].split(".")[2]]
      result[:heads] = heads if heads && @neighbours
      result
    end

    def renamed(stem, name)
      return WHOLE[stem] if WHOLE.key?(stem)

      layer, part = stem.match(/\Amodel\.layers\.(\d+)\.(.+)\z/)&.captures
      return "blk.#{layer}.#{MODULES[part]}" if MODULES.key?(part)

      raise UnsupportedModelError, "#{@weights.info(name)[:file]}: tensor #{name.inspect} has no name in GGUF files " \
                                   "of #{architecture}"
    end

    def order(name)
      layer = name[/\Ablk\.(\d+)\./, 1]
      [layer ? 1 : 0, layer.to_i, name]
    end

    # Some checkpoints store the head that they tie.
    def same_head?
      return @same_head unless @same_head.nil?

      pair = %w[lm_head.weight model.embed_tokens.weight]
      @same_head = pair.map { |name| @weights.info(name)[:shape] }.uniq.one? &&
                   pair.map { |name| @weights.encoded(name, "f32").hash }.uniq.one?
    end
  end
end
