# frozen_string_literal: true

module Candle
  # The configuration of a checkpoint in the keys of a GGUF file. What the keys can't say is refused.
  #
  # @api private
  class GgufKeys
    GELU = %w[gelu_pytorch_tanh gelu_new gelu_fast].freeze
    SILU = %w[silu swish].freeze
    # By model type: the activations that GGUF files of its architecture mean.
    MODEL_TYPES = {
      "llama" => SILU, "mistral" => SILU, "smollm" => SILU, "mixtral" => SILU, "granite" => SILU,
      "qwen2" => SILU, "qwen2_moe" => SILU, "qwen3" => SILU, "qwen3_moe" => SILU,
      "smollm3" => SILU, "olmo2" => SILU, "phi3" => SILU, "stablelm" => SILU, "glm4" => SILU,
      "gemma" => GELU, "gemma2" => GELU, "gemma3_text" => GELU, "starcoder2" => GELU, "phi" => GELU,
      "gpt_oss" => SILU, "gpt2" => GELU, "gpt_neox" => %w[gelu], "falcon" => %w[gelu],
      "bert" => %w[gelu], "xlm-roberta" => %w[gelu], "nomic_bert" => SILU
    }.freeze
    # Early configurations of Gemma say so where the other form is meant; gates have a word of their own.
    OTHER_WORDS = { "gemma" => "gelu", "nomic-bert" => "swiglu" }.freeze
    # Encoders, and what of them has no place in files for embeddings.
    ENCODERS = %w[bert nomic-bert].freeze
    HEADS = /\A(?:\w+\.)?pooler\.|\A(?:cls|classifier|qa_outputs|lm_head)\./
    # What GPT-2 and nomic-embed's own configurations call sizes.
    OWN_WORDS = { "hidden_size" => "n_embd", "num_hidden_layers" => "n_layer", "num_attention_heads" => "n_head",
                  "intermediate_size" => "n_inner", "max_position_embeddings" => "n_positions",
                  "layer_norm_eps" => "layer_norm_epsilon" }.freeze
    # Norms that subtract the mean, and what configurations call what they add to the variance.
    MEAN_NORMS = { "starcoder2" => "norm_epsilon", "stablelm" => "layer_norm_eps", "phi2" => "layer_norm_eps",
                   "gpt2" => "layer_norm_epsilon", "gptneox" => "layer_norm_eps", "falcon" => "layer_norm_epsilon",
                   "bert" => "layer_norm_eps", "nomic-bert" => "layer_norm_eps" }.freeze
    # How much of a head is rotated where the configuration doesn't say.
    ROTATED = { "stablelm" => 0.25, "phi2" => 0.5, "glm4" => 0.5, "gptneox" => 0.25 }.freeze
    # Models whose MLPs are four times as wide where the configuration doesn't say.
    FOURFOLD = %w[gpt2 falcon].freeze
    # What configurations of some models can say, and files can't.
    UNSAID = { "gpt2" => { "scale_attn_weights" => [nil, true], "scale_attn_by_inverse_layer_idx" => [nil, false] },
               "falcon" => { "alibi" => [nil, false] },
               "gpt-oss" => { "swiglu_limit" => [nil, 7.0], "swiglu_alpha" => [nil, 1.702] } }.freeze
    # Falcon's positions where the configuration doesn't say.
    POSITIONS = 2048
    # Every so many layers one sees beyond the window.
    PATTERNS = { "gemma2" => 2, "gemma3" => 6, "gpt-oss" => 2 }.freeze
    # Models whose scores are divided by the width for each head, by their number of layers.
    WIDE = { "gemma2" => 46, "gemma3" => 62 }.freeze
    # What Granite multiplies by.
    FACTORS = { "attention.scale" => "attention_multiplier", "embedding_scale" => "embedding_multiplier",
                "residual_scale" => "residual_multiplier", "logit_scale" => "logits_scaling" }.freeze
    CAPS = { "attn_logit_softcapping" => "attn_logit_softcapping",
             "final_logit_softcapping" => "final_logit_softcapping" }.freeze
    # Every fourth layer of SmolLM3 has no positions.
    PLAIN_EVERY = 4
    # Sizes are numbers of 32 bits.
    MOST = (1 << 31) - 1
    private_constant :GELU, :SILU, :OTHER_WORDS, :ENCODERS, :HEADS, :OWN_WORDS, :MEAN_NORMS, :ROTATED, :PATTERNS,
                     :WIDE, :FACTORS, :CAPS, :PLAIN_EVERY, :MOST, :FOURFOLD, :UNSAID, :POSITIONS

    def initialize(config, architecture, file)
      @config = config
      @architecture = architecture
      @file = file
    end

    # Refuses what files of the architecture don't say.
    def check
      check_activation
      check_window
      check_experts
      check_scores
      check_positions
      check_unsaid
    end

    def encoder?
      ENCODERS.include?(@architecture)
    end

    # @return [Boolean] whether files of this architecture do without a tensor
    def left_out?(name)
      encoder? && name.match?(HEADS)
    end

    def layer_count
      size("num_hidden_layers")
    end

    def head_count
      size("num_attention_heads")
    end

    def key_head_count
      return size("num_key_value_heads", head_count) unless @architecture == "falcon"
      return size("num_kv_heads", head_count) if @config["new_decoder_architecture"]

      @config["multi_query"] == false ? head_count : 1
    end

    # How files arrange the rows of queries, keys and values in one matrix, which checkpoints store by groups of heads.
    #
    # @return [Array, nil]
    def fused_rows
      [:apart, key_head_count, head_count / key_head_count] if %w[gptneox falcon].include?(@architecture)
    end

    # @return [Integer, nil]
    def expert_count
      size("num_local_experts", 0).nonzero? || size("num_experts", 0).nonzero?
    end

    # Rows of positions that no text uses: those up to the number of XLM-R's padding.
    def unused_positions
      return 0 unless @config["model_type"] == "xlm-roberta"

      padding = @config.fetch("pad_token_id", 1)
      return padding + 1 if padding.is_a?(Integer) && padding.between?(0, size("max_position_embeddings") - 2)

      raise CorruptModelError, "#{@file}: pad_token_id must be a position, not #{Arguments.shown(padding)}"
    end

    # @param vocabulary [Integer] how many tokens there are
    # @param experts [Boolean] whether there are any
    # @return [Hash{String => Object}]
    def metadata(vocabulary, experts:)
      keys = {
        "vocab_size" => u32(vocabulary), "context_length" => u32(context_length),
        "embedding_length" => u32(size("hidden_size")), "feed_forward_length" => u32(feed_forward_length),
        "block_count" => u32(layer_count), "attention.head_count" => u32(head_count), **epsilon
      }
      keys.merge!(encoder? ? of_encoder : of_decoder(experts))
      keys.transform_keys { |key| "#{@architecture}.#{key}" }
    end

    # @return [Hash{String => Array<Float>}] tensors that follow from the configuration
    def tensors
      case rope_type
      when "llama3" then { "rope_freqs.weight" => frequency_factors }
      when "longrope" then { "rope_factors_long.weight" => numbers("long_factor"),
                             "rope_factors_short.weight" => numbers("short_factor") }
      else {}
      end
    end

    private

    def refuse(what)
      raise UnsupportedModelError, "#{@file}: #{what} for this model"
    end

    def check_activation
      found = @config["hidden_activation"] || @config["hidden_act"] || @config["activation_function"] or return
      return if MODEL_TYPES.fetch(@config["model_type"]).include?(found) || OTHER_WORDS[@architecture] == found

      refuse("the activation #{found.inspect} has no GGUF form")
    end

    def check_window
      return if @config["use_sliding_window"] == false || [nil, 0].include?(@config["sliding_window"])

      window = size("sliding_window")
      return check_pattern if PATTERNS.key?(@architecture)
      return if @architecture == "phi3" || window >= size("max_position_embeddings")
      return if !%w[llama starcoder2].include?(@architecture) && !@config["use_sliding_window"]

      refuse("attention in windows of #{window} tokens has no GGUF form")
    end

    def check_pattern
      every = PATTERNS.fetch(@architecture)
      said = @config["sliding_window_pattern"] || @config["_sliding_window_pattern"]
      types = of_kind(@config["layer_types"], Array, "layer_types")
      found = Array.new(layer_count) { |layer| (layer + 1) % every != 0 }
      return if types ? types.map { |type| type == "sliding_attention" } == found : [nil, every].include?(said)

      refuse("layers with windows other than all but every #{every}th have no GGUF form")
    end

    # GGUF files have experts in all layers, and say nothing of how they are weighed.
    def check_experts
      return unless %w[qwen2moe qwen3moe].include?(@architecture)

      unless Array(@config["mlp_only_layers"]).empty? && [nil, 1].include?(@config["decoder_sparse_step"])
        refuse("layers without experts (mlp_only_layers) have no GGUF form")
      end
      wanted = @architecture == "qwen3moe"
      return if (@config["norm_topk_prob"] || false) == wanted

      refuse("norm_topk_prob: #{!wanted} has no GGUF form")
    end

    # Files of Gemma say by the number of layers alone what scores are divided by.
    def check_scores
      return unless WIDE.key?(@architecture)

      usual = layer_count == WIDE.fetch(@architecture) ? size("hidden_size") / head_count : head_size
      scalar = @config["query_pre_attn_scalar"] || 256
      refuse("query_pre_attn_scalar: #{scalar} has no GGUF form") unless scalar == usual
      refuse("attention in both directions has no GGUF form") if @config["use_bidirectional_attention"]
    end

    def check_positions
      refuse("norms of queries and keys have no GGUF form") if @config["qk_layernorm"]
      kind = @config["position_embedding_type"]
      refuse("positions of the type #{kind.inspect} have no GGUF form") unless [nil, "absolute"].include?(kind)
      if @config["rotary_emb_interleaved"] || ![nil, 1].include?(@config["rotary_emb_fraction"])
        refuse("rotary_emb_interleaved and rotary_emb_fraction have no GGUF form")
      end
      check_plain_layers if @architecture == "smollm3"
    end

    def check_unsaid
      UNSAID.fetch(@architecture, {}).each do |key, usual|
        refuse("#{key}: #{Arguments.shown(@config[key])} has no GGUF form") unless usual.include?(@config[key])
      end
      return unless @architecture == "falcon" && !@config["new_decoder_architecture"]

      refuse("parallel_attn: false has no GGUF form") if @config["parallel_attn"] == false
    end

    def check_plain_layers
      every = size("no_rope_layer_interval", PLAIN_EVERY)
      layers = @config["no_rope_layers"] || Array.new(layer_count) { |layer| ((layer + 1) % every).zero? ? 0 : 1 }
      return if layers == Array.new(layer_count) { |layer| ((layer + 1) % PLAIN_EVERY).zero? ? 0 : 1 }

      refuse("layers without positions other than every #{PLAIN_EVERY}th have no GGUF form")
    end

    def u32(value)
      GgufWriter.u32(value)
    end

    def said(key)
      @config.fetch(key) { @config[OWN_WORDS[key]] }
    end

    def size(key, usual = nil)
      value = said(key)
      return usual if value.nil? && usual
      return value if value.is_a?(Integer) && value.between?(1, MOST)

      raise CorruptModelError, "#{@file}: #{key} must be a positive number, not #{Arguments.shown(value)}"
    end

    def number(value, key)
      return Float(value) if value.is_a?(Numeric) && value.to_f.finite?

      raise CorruptModelError, "#{@file}: #{key} must be a number, not #{Arguments.shown(value)}"
    end

    def of_kind(value, kind, key)
      return value if value.nil? || value.is_a?(kind)

      raise CorruptModelError, "#{@file}: #{key} is of the wrong kind: #{Arguments.shown(value)}"
    end

    def context_length
      size("max_position_embeddings", @architecture == "falcon" ? POSITIONS : nil) - unused_positions
    end

    def feed_forward_length
      usual = FOURFOLD.include?(@architecture) ? 4 * size("hidden_size") : nil
      size(@architecture == "falcon" ? "ffn_hidden_size" : "intermediate_size", usual)
    end

    def head_size
      size("head_dim", [size("hidden_size") / head_count, 1].max)
    end

    def epsilon
      name = MEAN_NORMS.fetch(@architecture, "rms_norm_eps")
      key = name == "rms_norm_eps" ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon"
      usual = { "rms_norm_eps" => 1e-6 }.fetch(name, encoder? ? 1e-12 : 1e-5)
      { key => number(said(name) || usual, name) }
    end

    def of_encoder
      keys = { "attention.causal" => false }
      return keys unless @architecture == "nomic-bert"

      # Longer texts would need positions that are scaled by their length.
      keys.merge("rope.freq_base" => theta,
                 "context_length" => u32(size("max_trained_positions", size("max_position_embeddings"))))
    end

    def of_decoder(experts)
      keys = { "attention.head_count_kv" => u32(key_head_count), "attention.key_length" => u32(head_size),
               "attention.value_length" => u32(head_size) }
      return keys if @architecture == "gpt2"

      keys.merge!("rope.freq_base" => theta, "rope.dimension_count" => u32(rotated_size))
      keys.merge!(scaling, experts ? of_experts : {}, factors, windows)
      keys.merge(residual)
    end

    # Whether attention and MLP read the same input: of GPT-NeoX they do where nothing is said.
    def residual
      usual = { "stablelm" => false, "gptneox" => true }
      return {} unless usual.key?(@architecture)

      said = @config["use_parallel_residual"]
      { "use_parallel_residual" => said.nil? ? usual.fetch(@architecture) : said == true }
    end

    def of_experts
      keys = { "expert_count" => u32(expert_count), "expert_used_count" => u32(size("num_experts_per_tok")) }
      { "expert_feed_forward_length" => "moe_intermediate_size",
        "expert_shared_feed_forward_length" => "shared_expert_intermediate_size" }.each do |key, word|
        keys[key] = u32(size(word)) if @config[word]
      end
      keys["expert_feed_forward_length"] = u32(feed_forward_length) if @architecture == "gpt-oss"
      keys
    end

    def factors
      caps = CAPS.transform_values { |key| @config[key] && number(@config[key], key) }.compact
      return caps unless @architecture == "granite"

      caps.merge(FACTORS.transform_values { |key| number(@config[key] || 1.0, key) })
    end

    def windows
      # Files of Phi 3 say 0 where there are none.
      return { "attention.sliding_window" => u32(size("sliding_window", 0)) } if @architecture == "phi3"
      return {} unless PATTERNS.key?(@architecture) && @config["sliding_window"]

      keys = { "attention.sliding_window" => u32(size("sliding_window")) }
      @architecture == "gemma3" ? keys.merge("rope.freq_base_swa" => local_theta) : keys
    end

    # What positions are scaled by, of layers without windows where layers differ.
    def rope
      found = of_kind(@config["rope_parameters"] || @config["rope_scaling"], Hash, "rope_parameters") || {}
      of_kind(found["full_attention"], Hash, "full_attention") || found
    end

    def rope_type
      rope["rope_type"] || rope["type"]
    end

    def rotated
      found = @config["partial_rotary_factor"] || @config["rotary_pct"] || rope["partial_rotary_factor"]
      found ||= ROTATED.fetch(@architecture, 1.0)
      number(found, "partial_rotary_factor").clamp(0.0, 1.0)
    end

    def rotated_size
      (head_size * rotated).to_i
    end

    def theta
      found = @config["rope_theta"] || rope["rope_theta"] || @config["rotary_emb_base"] || 10_000.0
      return found.to_f if number(found, "rope_theta").positive?

      raise CorruptModelError, "#{@file}: rope_theta must be positive, not #{found}"
    end

    def local_theta
      local = of_kind(@config["rope_parameters"]&.dig("sliding_attention"), Hash, "sliding_attention") || {}
      number(local["rope_theta"] || @config["rope_local_base_freq"] || 10_000.0, "rope_local_base_freq")
    end

    def scaling
      case rope_type
      when nil, "default", "llama3" then {}
      when "linear" then { "rope.scaling.type" => "linear", "rope.scaling.factor" => number(rope["factor"], "factor") }
      when "yarn" then { "rope.scaling.type" => "yarn", "rope.scaling.factor" => number(rope["factor"], "factor"),
                         "rope.scaling.original_context_length" => u32(original_context) }
      when "longrope"
        refuse("rotary positions of the type \"longrope\" have no GGUF form") unless @architecture == "phi3"
        { "rope.scaling.original_context_length" => u32(original_context),
          "rope.scaling.attn_factor" => attention_factor }
      else
        raise UnsupportedModelError, "#{@file}: rotary positions of the type #{rope_type.inspect} have no GGUF form"
      end
    end

    def original_context
      found = rope["original_max_position_embeddings"]
      return size("original_max_position_embeddings", size("max_position_embeddings")) if found.nil?

      number(found, "original_max_position_embeddings").to_i.clamp(1, MOST)
    end

    def attention_factor
      return number(rope["attention_factor"], "attention_factor") if rope["attention_factor"]

      times = size("max_position_embeddings").fdiv(original_context)
      times > 1 ? Math.sqrt(1 + (Math.log(times) / Math.log([original_context, 2].max))) : 1.0
    end

    def numbers(key)
      found = rope[key]
      return found.map { |one| number(one, key) } if found.is_a?(Array) && found.size == rotated_size / 2

      raise CorruptModelError, "#{@file}: #{key} must have a number for each two of #{rotated_size} " \
                               "rotated dimensions"
    end

    # Llama 3 divides low frequencies.
    def frequency_factors
      Array.new(head_size / 2) { |at| frequency_factor(2 * Math::PI * (theta**(2.0 * at / head_size))) }
    end

    def frequency_factor(wave)
      keys = %w[factor low_freq_factor high_freq_factor original_max_position_embeddings]
      factor, low, high, context = rope.values_at(*keys).zip(keys).map { |one, key| number(one, key) }
      return 1.0 if wave < context / high
      return factor if wave > context / low

      smooth = ((context / wave) - low) / (high - low)
      1 / (((1 - smooth) / factor) + smooth)
    end
  end
end
