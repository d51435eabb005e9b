# frozen_string_literal: true

module Candle
  # Rotary positions of a configuration in the keys of a GGUF file.
  #
  # @api private
  class GgufRope
    # How much of a head is rotated where the configuration doesn't say.
    ROTATED = { "stablelm" => 0.25, "phi2" => 0.5, "glm4" => 0.5, "gptneox" => 0.25, "chatglm" => 0.5,
                "glm4moe" => 0.5, "nemotron" => 0.5 }.freeze
    # The base by model type, where the configuration doesn't say.
    BASES = { "ernie4_5" => 500_000.0, "ernie4_5_moe" => 500_000.0, "olmo3" => 500_000.0, "lfm2" => 1_000_000.0,
              "lfm2_moe" => 1_000_000.0 }.freeze
    # Models whose files say how scores grow with the scaling: what the converter divides by.
    LOG_MULTIPLIERS = { "mistral3" => 1, "deepseek2" => 10 }.freeze
    # Files with long and short divisors of frequencies.
    LONG = %w[phi3 phimoe].freeze
    # How far a factor may be from the usual one.
    CLOSE = 1e-4
    private_constant :ROTATED, :BASES, :LOG_MULTIPLIERS, :LONG, :CLOSE

    # @param config [GgufConfig]
    # @param architecture [String]
    # @param head_size [Integer]
    def initialize(config, architecture, head_size)
      @config = config
      @architecture = architecture
      @head_size = head_size
    end

    # @return [Hash{String => Object}]
    def metadata
      { "rope.freq_base" => theta, "rope.dimension_count" => GgufWriter.u32(rotated_size), **scaling }
    end

    def theta
      found = @config["rope_theta"] || rope["rope_theta"] || @config["rotary_emb_base"] ||
              BASES.fetch(@config["model_type"], 10_000.0)
      return found.to_f * stretched if number(found, "rope_theta").positive?

      raise CorruptModelError, "#{@config.file}: rope_theta must be positive, not #{found}"
    end

    # Of layers with windows.
    def local_theta
      local = of_kind(parameters&.dig("sliding_attention"), "sliding_attention") || {}
      number(local["rope_theta"] || @config["rope_local_base_freq"] || 10_000.0, "rope_local_base_freq")
    end

    # @return [Hash{String => Array<Float>}] tensors that follow from the configuration
    def tensors
      case type
      when "llama3" then { "rope_freqs.weight" => frequency_factors }
      when "longrope" then { "rope_factors_long.weight" => numbers("long_factor"),
                             "rope_factors_short.weight" => numbers("short_factor") }
      else {}
      end
    end

    # What positions are scaled by, of layers without windows where layers differ.
    def rope
      found = of_kind(parameters, "rope_parameters") || {}
      of_kind(found["full_attention"], "full_attention") || found
    end

    private

    def parameters
      @config["rope_parameters"] || @config["rope_scaling"]
    end

    def of_kind(value, key)
      @config.of_kind(value, Hash, key)
    end

    def number(value, key)
      @config.number(value, key)
    end

    def refuse(what)
      @config.refuse(what)
    end

    def type
      rope["rope_type"] || rope["type"]
    end

    def rotated
      found = @config["partial_rotary_factor"] || @config["rotary_pct"] || rope["partial_rotary_factor"]
      found ||= ROTATED.fetch(@architecture, 1.0)
      number(found, "partial_rotary_factor").clamp(0.0, 1.0)
    end

    def rotated_size
      return @config.size("qk_rope_head_dim") if @architecture == "deepseek2"
      return @config.size("rotary_dim") if @config["rotary_dim"]

      (@head_size * rotated).to_i
    end

    # Hunyuan's fixed alpha makes its dynamic scaling a larger base.
    def stretched
      alpha = hunyuan? && rope["alpha"] or return 1.0
      return number(alpha, "alpha")**@head_size.fdiv(@head_size - 2) if @head_size > 2

      refuse("alpha with heads of #{@head_size} has no GGUF form")
    end

    def hunyuan?
      @architecture.start_with?("hunyuan")
    end

    def scaling
      case type
      when nil, "default", "llama3" then {}
      when "linear" then { "rope.scaling.type" => "linear", "rope.scaling.factor" => number(rope["factor"], "factor") }
      when "yarn" then yarn
      when "longrope"
        refuse("rotary positions of the type \"longrope\" have no GGUF form") unless LONG.include?(@architecture)
        { "rope.scaling.original_context_length" => GgufWriter.u32(original_context),
          "rope.scaling.attn_factor" => attention_factor }
      else scaling_of_own
      end
    end

    def scaling_of_own
      return { "rope.scaling.type" => "none" } if type == "dynamic" && hunyuan? && rope["alpha"]

      raise UnsupportedModelError,
            "#{@config.file}: rotary positions of the type #{type.inspect} have no GGUF form"
    end

    def yarn
      check_yarn
      keys = { "rope.scaling.type" => "yarn", "rope.scaling.factor" => number(rope["factor"], "factor"),
               "rope.scaling.original_context_length" => GgufWriter.u32(original_context) }
      %w[beta_fast beta_slow].each do |word|
        keys["rope.scaling.yarn_#{word}"] = number(rope[word], word) if rope[word]
      end
      if LOG_MULTIPLIERS.key?(@architecture)
        all = number(rope["mscale_all_dim"] || 0.0, "mscale_all_dim")
        keys["rope.scaling.yarn_log_multiplier"] = all / LOG_MULTIPLIERS.fetch(@architecture)
      end
      keys
    end

    # Files say neither what rotations are multiplied by, nor what scores are.
    def check_yarn
      if rope["attention_factor"]
        usual = (0.1 * Math.log([number(rope["factor"], "factor"), 1.0].max)) + 1
        given = number(rope["attention_factor"], "attention_factor")
        refuse("attention_factor: #{given} has no GGUF form") unless (given - usual).abs < CLOSE
      end
      return if rope["mscale"] == rope["mscale_all_dim"]

      refuse("mscale: #{Arguments.shown(rope["mscale"])} beside mscale_all_dim: " \
             "#{Arguments.shown(rope["mscale_all_dim"])} has no GGUF form")
    end

    def original_context
      found = rope["original_max_position_embeddings"]
      return number(found, "original_max_position_embeddings").to_i.clamp(1, (1 << 31) - 1) unless found.nil?

      @config.size(%w[original_max_position_embeddings max_position_embeddings])
    end

    def attention_factor
      return number(rope["attention_factor"], "attention_factor") if rope["attention_factor"]

      times = @config.size("max_position_embeddings").fdiv(original_context)
      times > 1 ? Math.sqrt(1 + (Math.log(times) / Math.log([original_context, 2].max))) : 1.0
    end

    def numbers(key)
      found = rope[key]
      return found.map { |one| number(one, key) } if found.is_a?(Array) && found.size == rotated_size / 2

      raise CorruptModelError, "#{@config.file}: #{key} must have a number for each two of #{rotated_size} " \
                               "rotated dimensions"
    end

    # Llama 3 divides low frequencies.
    def frequency_factors
      Array.new(@head_size / 2) { |at| frequency_factor(2 * Math::PI * (theta**(2.0 * at / @head_size))) }
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
