# frozen_string_literal: true

module Candle
  # The experts of a configuration in the keys of a GGUF file. What these can't say is refused.
  #
  # @api private
  class GgufExperts
    COUNTS = %w[num_local_experts num_experts n_routed_experts moe_num_experts].freeze
    USED = %w[num_experts_per_tok moe_k moe_topk].freeze
    SHARED = %w[n_shared_experts num_shared_experts moe_num_shared_experts num_shared_expert].freeze
    DENSE = %w[first_k_dense_replace num_dense_layers moe_layer_start_index].freeze
    SCALES = %w[routed_scaling_factor route_scale].freeze
    # What routers are in files whose key says so: numbers of GGUF.
    SIGMOID = 2
    # By architecture: which keys files have beside the counts. `size` is that of an expert, `width` where it is that
    # of other MLPs, `shared` how many see every token, `sums` how wide these are together.
    KEYS = {
      "qwen2moe" => %i[size], "qwen3moe" => %i[size], "gpt-oss" => %i[width], "granitemoe" => %i[],
      "hunyuan-moe" => %i[width shared_width shared], "minimax-m2" => %i[width sigmoid],
      "ernie4_5-moe" => %i[size shared sums dense step], "lfm2moe" => %i[size dense sigmoid],
      "glm4moe" => %i[size shared dense sigmoid scale norm groups],
      "dots1" => %i[size shared dense sigmoid scale norm groups],
      "exaone-moe" => %i[size shared sums dense sigmoid scale norm groups],
      "deepseek2" => %i[size shared dense scale groups], "afmoe" => %i[size shared dense sigmoid scale normed]
    }.freeze
    # Whether the chosen weights are divided by their sum, where files don't say.
    NORMED = { "qwen2moe" => false, "qwen3moe" => true, "olmoe" => false, "lfm2moe" => true }.freeze
    # Where nothing is said.
    NORMED_USUALLY = %w[lfm2moe].freeze
    private_constant :COUNTS, :USED, :SHARED, :DENSE, :SCALES, :SIGMOID, :KEYS, :NORMED, :NORMED_USUALLY

    # @param config [GgufConfig]
    # @param architecture [String]
    # @param layers [Integer]
    def initialize(config, architecture, layers)
      @config = config
      @architecture = architecture
      @layers = layers
    end

    # @return [Integer, nil]
    def count
      COUNTS.filter_map { |key| @config.count(key, 0).nonzero? }.first
    end

    # Refuses what files of the architecture don't say.
    def check
      check_layers
      check_weights
      return unless @architecture == "ernie4_5-moe"

      last = Array(@config["moe_layer_end_index"]).first
      refuse("moe_layer_end_index: #{last} has no GGUF form") unless [nil, -1, @layers - 1].include?(last)
    end

    # @return [Hash{String => Object}]
    def metadata
      keys = { "expert_count" => u32(count), "expert_used_count" => u32(alike(USED)) }
      shared = @config["shared_expert_intermediate_size"] || @config["shared_intermediate_size"]
      keys["expert_shared_feed_forward_length"] = u32(shared_size) if shared && shared != 0
      KEYS.fetch(@architecture, []).inject(keys) { |all, key| all.merge(send(key)) }
    end

    private

    def refuse(what)
      @config.refuse(what)
    end

    def u32(value)
      GgufWriter.u32(value)
    end

    # A size that some configurations have for each layer.
    def alike(keys)
      key = Array(keys).find { |one| @config.key?(one) } || Array(keys).first
      list = @config[key]
      return @config.size(key) unless list.is_a?(Array)
      return list.first if list.uniq.one? && list.first.is_a?(Integer) && list.first.between?(1, (1 << 31) - 1)

      refuse("#{key}: #{Arguments.shown(list)} has no GGUF form")
    end

    # Files have experts in all layers but the first few.
    def check_layers
      kinds = @config.of_kind(@config["mlp_layer_types"], Array, "mlp_layer_types")
      kinds ||= [] unless Array(@config["mlp_only_layers"]).empty? && one?("decoder_sparse_step")
      refuse("layers without experts (mlp_only_layers) have no GGUF form") unless kinds.nil? || first_dense?(kinds)
      @config.refuse_others("moe_layer_freq", [nil, 1])
    end

    def first_dense?(kinds)
      count = leading(kinds)
      (count.zero? || KEYS.fetch(@architecture, []).include?(:dense)) &&
        kinds == (["dense"] * count) + (["sparse"] * (@layers - count))
    end

    def one?(key)
      [nil, 1].include?(@config[key])
    end

    def leading(kinds)
      kinds.take_while { |kind| kind == "dense" }.size
    end

    # How the outputs of experts are weighed.
    def check_weights
      wanted = NORMED[@architecture]
      usual = NORMED_USUALLY.include?(@architecture)
      said = @config["norm_topk_prob"].nil? ? usual : @config["norm_topk_prob"]
      refuse("norm_topk_prob: #{!wanted} has no GGUF form") if !wanted.nil? && said != wanted
      return unless @architecture == "lfm2moe"

      @config.refuse_others("routed_scaling_factor", [nil, 1.0])
    end

    def size
      word = @config["moe_intermediate_size"] ? "moe_intermediate_size" : nil
      word ? { "expert_feed_forward_length" => u32(alike(word)) } : {}
    end

    def width
      { "expert_feed_forward_length" => u32(alike(%w[moe_intermediate_size intermediate_size])) }
    end

    def shared_width
      { "expert_shared_feed_forward_length" => u32(@config.size("intermediate_size")) }
    end

    def shared_size
      @config.size(%w[shared_expert_intermediate_size shared_intermediate_size])
    end

    def shared_count
      key = SHARED.find { |one| @config.key?(one) } or return 0
      @config[key].is_a?(Array) ? alike(key) : @config.count(key, 0)
    end

    def shared
      # Hunyuan's has one where nothing is said.
      number = shared_count.zero? && @architecture == "hunyuan-moe" ? 1 : shared_count
      { "expert_shared_count" => u32(number) }
    end

    def sums
      return {} if shared_count.zero?

      { "expert_shared_feed_forward_length" => u32(alike("moe_intermediate_size") * shared_count) }
    end

    def dense
      kinds = @config["mlp_layer_types"]
      number = kinds ? leading(kinds) : @config.count(DENSE, 0)
      { "leading_dense_block_count" => u32(number) }
    end

    def step
      { "interleave_moe_layer_step" => u32(@config.size("moe_layer_interval", 1)) }
    end

    def sigmoid
      { "expert_gating_func" => u32(SIGMOID) }
    end

    def scale
      key = SCALES.find { |one| @config[one] }
      { "expert_weights_scale" => key ? @config.number(@config[key], key) : 1.0 }
    end

    def norm
      { "expert_weights_norm" => @config["norm_topk_prob"] != false }
    end

    def normed
      { "expert_weights_norm" => true }
    end

    # The third generation of DeepSeek and those after it have sigmoids, which only their files say.
    def groups
      count, used = %w[n_group topk_group].map { |key| limited? ? @config.size(key, 1) : 1 }
      keys = { "expert_group_count" => u32(count), "expert_group_used_count" => u32(used) }
      return keys unless @architecture == "deepseek2" && @config["model_type"] != "deepseek_v2"

      keys.merge(sigmoid, norm)
    end

    def limited?
      @config["model_type"] != "deepseek_v2" || @config["topk_method"] == "group_limited_greedy"
    end
  end
end
