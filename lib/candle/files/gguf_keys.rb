# frozen_string_literal: true

module Candle
  # The configuration of a checkpoint in the keys of a GGUF file. What the keys can't say is refused.
  #
  # @api private
  class GgufKeys
    GELU = %w[gelu_pytorch_tanh gelu_new gelu_fast].freeze
    SILU = %w[silu swish].freeze
    SQUARED = %w[relu2].freeze
    # By model type: the activations that GGUF files of its architecture mean.
    MODEL_TYPES = {
      "llama" => SILU, "mistral" => SILU, "smollm" => SILU, "mixtral" => SILU, "granite" => SILU,
      "qwen2" => SILU, "qwen2_moe" => SILU, "qwen3" => SILU, "qwen3_moe" => SILU,
      "smollm3" => SILU, "olmo" => SILU, "olmo2" => SILU, "olmo3" => SILU, "olmoe" => SILU, "phi3" => SILU,
      "phimoe" => SILU, "stablelm" => SILU, "glm" => SILU, "glm4" => SILU, "glm4_moe" => SILU, "glm4_moe_lite" => SILU,
      "ministral3" => SILU, "granitemoe" => SILU, "granitemoeshared" => SILU, "cohere" => SILU, "cohere2" => SILU,
      "exaone4" => SILU, "exaone_moe" => SILU, "ernie4_5" => SILU, "ernie4_5_moe" => SILU, "seed_oss" => SILU,
      "hunyuan_v1_dense" => SILU, "hunyuan_v1_moe" => SILU, "dots1" => SILU, "minimax_m2" => SILU, "afmoe" => SILU,
      "deepseek_v2" => SILU, "deepseek_v3" => SILU, "lfm2" => SILU, "lfm2_moe" => SILU,
      "arcee" => SQUARED, "nemotron" => SQUARED, "apertus" => %w[xielu],
      "gemma" => GELU, "gemma2" => GELU, "gemma3_text" => GELU, "starcoder2" => GELU, "phi" => GELU,
      "gpt_oss" => SILU, "gpt2" => GELU, "gpt_bigcode" => GELU, "gpt_neox" => %w[gelu], "falcon" => %w[gelu],
      "bert" => %w[gelu], "xlm-roberta" => %w[gelu], "nomic_bert" => SILU
    }.freeze
    # Early configurations of Gemma say so where the other form is meant; gates have a word of their own.
    OTHER_WORDS = { "gemma" => "gelu", "nomic-bert" => "swiglu" }.freeze
    # Encoders, and what of them has no place in files for embeddings.
    ENCODERS = %w[bert nomic-bert].freeze
    HEADS = /\A(?:\w+\.)?pooler\.|\A(?:cls|classifier|qa_outputs|lm_head)\./
    # Norms that subtract the mean, and what configurations call what they add to the variance.
    MEAN_NORMS = { "starcoder2" => "norm_epsilon", "stablelm" => "layer_norm_eps", "phi2" => "layer_norm_eps",
                   "gpt2" => "layer_norm_epsilon", "gptneox" => "layer_norm_eps", "falcon" => "layer_norm_epsilon",
                   "bert" => "layer_norm_eps", "nomic-bert" => "layer_norm_eps", "command-r" => "layer_norm_eps",
                   "cohere2" => "layer_norm_eps", "nemotron" => "norm_eps", "starcoder" => "layer_norm_epsilon",
                   "olmo" => nil }.freeze
    # What others call it.
    EPSILONS = { "lfm2" => "norm_eps", "lfm2moe" => "norm_eps" }.freeze
    # Models whose MLPs are four times as wide where the configuration doesn't say.
    FOURFOLD = %w[gpt2 falcon starcoder].freeze
    # What configurations of some models can say, and files can't.
    UNSAID = { "gpt2" => { "scale_attn_weights" => [nil, true], "scale_attn_by_inverse_layer_idx" => [nil, false] },
               "starcoder" => { "scale_attn_weights" => [nil, true], "multi_query" => [nil, true] },
               "falcon" => { "alibi" => [nil, false] }, "olmoe" => { "clip_qkv" => [nil] },
               "afmoe" => { "mup_enabled" => [true], "n_group" => [nil, 1] },
               "deepseek2" => { "rope_interleave" => [nil, true] }, "lfm2" => { "conv_bias" => [nil, false] },
               "lfm2moe" => { "conv_bias" => [nil, false], "use_expert_bias" => [nil, true] },
               "phimoe" => { "router_jitter_noise" => [nil, 0.01], "num_experts_per_tok" => [2] },
               "gpt-oss" => { "swiglu_limit" => [nil, 7.0], "swiglu_alpha" => [nil, 1.702] } }.freeze
    # Falcon's positions where the configuration doesn't say.
    POSITIONS = 2048
    # Models whose scores are divided by the width for each head, by their number of layers.
    WIDE = { "gemma2" => 46, "gemma3" => 62 }.freeze
    # What Granite multiplies by.
    FACTORS = { "attention.scale" => "attention_multiplier", "embedding_scale" => "embedding_multiplier",
                "residual_scale" => "residual_multiplier", "logit_scale" => "logits_scaling" }.freeze
    GRANITE = %w[granite granitemoe].freeze
    # What Cohere's logits are multiplied by where the configuration doesn't say.
    COHERE = { "command-r" => 0.0625, "cohere2" => 0.0625 }.freeze
    CAPS = { "attn_logit_softcapping" => "attn_logit_softcapping",
             "final_logit_softcapping" => "final_logit_softcapping", "attention.clamp_kqv" => "clip_qkv" }.freeze
    # Every fourth layer of SmolLM3 has no positions.
    PLAIN_EVERY = 4
    # Models with positions of their own for every place of a text.
    LEARNED = %w[gpt2 starcoder].freeze
    # Models that may have layers behind those that are counted, which predict a token beyond the next one.
    AHEAD = %w[glm4moe deepseek2 exaone-moe minimax-m2 ernie4_5-moe].freeze
    AHEAD_NAMES = /\A(?:model\.)?mtp[._]/
    OF_LAYER = /\Amodel\.layers\.(\d+)\./
    private_constant :GELU, :SILU, :SQUARED, :OTHER_WORDS, :ENCODERS, :HEADS, :MEAN_NORMS, :EPSILONS, :WIDE, :FACTORS,
                     :GRANITE, :COHERE, :CAPS, :PLAIN_EVERY, :FOURFOLD, :UNSAID, :POSITIONS, :LEARNED, :AHEAD,
                     :AHEAD_NAMES, :OF_LAYER

    def initialize(config, architecture, file)
      @config = GgufConfig.new(config, file)
      @architecture = architecture
      @file = file
    end

    # Refuses what files of the architecture don't say.
    def check
      check_activation
      GgufWindows.new(@config, @architecture, layer_count).check
      experts.check
      check_scores
      check_positions
      check_unsaid
    end

    def encoder?
      ENCODERS.include?(@architecture)
    end

    # @return [Boolean] whether files of this architecture do without a tensor
    def left_out?(name)
      return name.match?(HEADS) if encoder?

      AHEAD.include?(@architecture) && (name.match?(AHEAD_NAMES) || name[OF_LAYER, 1].to_i >= layer_count)
    end

    def layer_count
      size("num_hidden_layers")
    end

    def head_count
      size("num_attention_heads")
    end

    def key_head_count
      return 1 if %w[deepseek2 starcoder].include?(@architecture)
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
      experts.count
    end

    # What becomes of the matrix of keys and values behind DeepSeek's latents: rows of keys, and of values.
    #
    # @return [Array(Integer, Integer)]
    def latent_sizes
      [size("qk_nope_head_dim"), size("v_head_dim", [size("hidden_size") / head_count, 1].max)]
    end

    # Rows of positions that no text uses: those up to the number of XLM-R's padding.
    def unused_positions
      return 0 unless @config["model_type"] == "xlm-roberta"

      padding = @config.key?("pad_token_id") ? @config["pad_token_id"] : 1
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
      rope.tensors
    end

    private

    def refuse(what)
      @config.refuse(what)
    end

    def size(keys, usual = nil)
      @config.size(keys, usual)
    end

    def u32(value)
      GgufWriter.u32(value)
    end

    def rope
      @rope ||= GgufRope.new(@config, @architecture, head_size)
    end

    def experts
      @experts ||= GgufExperts.new(@config, @architecture, layer_count)
    end

    def check_activation
      found = @config["hidden_activation"] || @config["hidden_act"] || @config["activation_function"] or return
      return if MODEL_TYPES.fetch(@config["model_type"]).include?(found) || OTHER_WORDS[@architecture] == found

      refuse("the activation #{found.inspect} has no GGUF form")
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
      UNSAID.fetch(@architecture, {}).each { |key, usual| @config.refuse_others(key, usual) }
      return unless @architecture == "falcon" && !@config["new_decoder_architecture"]

      refuse("parallel_attn: false has no GGUF form") if @config["parallel_attn"] == false
    end

    def check_plain_layers
      every = size("no_rope_layer_interval", PLAIN_EVERY)
      layers = @config["no_rope_layers"] || Array.new(layer_count) { |layer| ((layer + 1) % every).zero? ? 0 : 1 }
      return if layers == Array.new(layer_count) { |layer| ((layer + 1) % PLAIN_EVERY).zero? ? 0 : 1 }

      refuse("layers without positions other than every #{PLAIN_EVERY}th have no GGUF form")
    end

    # Cohere's first models read more than they have positions for.
    def context_length
      return size(%w[model_max_length max_position_embeddings]) if @architecture == "command-r"

      size("max_position_embeddings", @architecture == "falcon" ? POSITIONS : nil) - unused_positions
    end

    def feed_forward_length
      usual = FOURFOLD.include?(@architecture) ? 4 * size("hidden_size") : nil
      width = size(@architecture == "falcon" ? "ffn_hidden_size" : %w[block_ff_dim intermediate_size], usual)
      @config["block_auto_adjust_ff_dim"] && @architecture == "lfm2" ? adjusted(width) : width
    end

    # LFM2's MLPs have two thirds of that, in whole steps.
    def adjusted(width)
      wide = (2 * width) / 3
      factor = @config["block_ffn_dim_multiplier"]
      wide = (@config.number(factor, "block_ffn_dim_multiplier") * wide).to_i if factor
      step = size("block_multiple_of", 256)
      (wide + step - 1) / step * step
    end

    def head_size
      size("head_dim", [size("hidden_size") / head_count, 1].max)
    end

    def epsilon
      mean = MEAN_NORMS.key?(@architecture)
      name = mean ? MEAN_NORMS[@architecture] : EPSILONS.fetch(@architecture, "rms_norm_eps")
      usual = { "rms_norm_eps" => 1e-6 }.fetch(name, encoder? ? 1e-12 : 1e-5)
      { "attention.layer_norm_#{"rms_" unless mean}epsilon" =>
          @config.number((name && @config.said(name)) || usual, name.to_s) }
    end

    def of_encoder
      keys = { "attention.causal" => false }
      return keys unless @architecture == "nomic-bert"

      # Longer texts would need positions that are scaled by their length.
      keys.merge("rope.freq_base" => rope.theta,
                 "context_length" => u32(size(%w[max_trained_positions max_position_embeddings])))
    end

    def of_decoder(has_experts)
      keys = heads
      return keys if LEARNED.include?(@architecture)

      keys.merge!(rope.metadata, has_experts ? experts.metadata : {}, factors)
      keys.merge!(GgufWindows.new(@config, @architecture, layer_count).metadata(rope))
      keys.merge(residual, logits, states)
    end

    def heads
      return latent_heads if @architecture == "deepseek2"

      { "attention.head_count_kv" => kept? ? GgufWriter::Integers.new(kept_heads) : u32(key_head_count),
        "attention.key_length" => u32(head_size), "attention.value_length" => u32(head_size) }
    end

    # Keys and values are made of one latent for each token.
    def latent_heads
      rank = size("kv_lora_rank")
      rotated = size("qk_rope_head_dim")
      plain, values = latent_sizes
      keys = { "attention.head_count_kv" => 1, "attention.kv_lora_rank" => rank,
               "attention.key_length" => rank + rotated, "attention.value_length" => rank,
               "attention.key_length_mla" => plain + rotated, "attention.value_length_mla" => values }
      keys["attention.q_lora_rank"] = size("q_lora_rank") if @config["q_lora_rank"]
      keys.transform_values { |value| u32(value) }
    end

    # Whether layers without attention keep states.
    def kept?
      @architecture.start_with?("lfm2")
    end

    def kept_heads
      types = @config.of_kind(@config["layer_types"], Array, "layer_types")
      listed = @config.of_kind(@config["full_attn_idxs"], Array, "full_attn_idxs")
      types ||= Array.new(layer_count) { |layer| listed.nil? || listed.include?(layer) ? "full_attention" : "conv" }
      types.map { |type| type == "full_attention" ? key_head_count : 0 }
    end

    def states
      kept? ? { "shortconv.l_cache" => u32(size("conv_L_cache", 3)) } : {}
    end

    # Whether attention and MLP read the same input: of GPT-NeoX they do where nothing is said.
    def residual
      usual = { "stablelm" => false, "gptneox" => true }
      return {} unless usual.key?(@architecture)

      said = @config["use_parallel_residual"]
      { "use_parallel_residual" => said.nil? ? usual.fetch(@architecture) : said == true }
    end

    def factors
      caps = CAPS.transform_values { |key| @config[key] && @config.number(@config[key], key) }.compact
      return caps unless GRANITE.include?(@architecture)

      caps.merge(FACTORS.transform_values { |key| @config.number(@config[key] || 1.0, key) })
    end

    def logits
      case @architecture
      when "command-r", "cohere2"
        { "logit_scale" => @config.number(@config["logit_scale"] || COHERE.fetch(@architecture), "logit_scale"),
          "rope.scaling.type" => "none" }
      when "mistral3" then temperature
      else {}
      end
    end

    # Scores grow with the position.
    def temperature
      found = rope.rope["llama_4_scaling_beta"] or return {}

      { "attention.temperature_scale" => @config.number(found, "llama_4_scaling_beta") }
    end
  end
end
