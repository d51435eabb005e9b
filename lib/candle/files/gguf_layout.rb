# frozen_string_literal: true

require "json"
require "tempfile"

module Candle
  # What a checkpoint of transformers is called in a GGUF file: the names of its tensors, by the engine's tables, and
  # the keys of its configuration ({GgufKeys}).
  #
  # @api private
  class GgufLayout
    # Architectures whose rows that are rotated together become neighbours.
    NEIGHBOURS = %w[llama granite granitemoe smollm3 arcee olmo mistral3].freeze
    # Architectures whose norms multiply by one more than they store.
    ONE_MORE = %w[gemma gemma2 gemma3 nemotron].freeze
    # Where two parts have one name, the one that is meant.
    MEANT = "post_attention_norm"
    # Tensors that are functions of the configuration, or that GGUF files of encoders leave out.
    COMPUTED = /rotary_emb\.inv_freq\z|\.masked_bias\z|\.(?:attn|attention)\.bias\z|(?:\A|\.)position_ids\z/
    # A number of a layer, and one of an expert.
    EXPERT = /\.\d+\.\D+\.\d+\./
    # What old checkpoints call the parts of norms.
    ENDINGS = { "gamma" => "weight", "beta" => "bias" }.freeze
    # What Mixtral has beside Llama.
    MIXTRAL = { "gate" => "ffn_gate_inp", "experts.*.w1" => "ffn_gate_exps", "experts.*.w3" => "ffn_up_exps",
                "experts.*.w2" => "ffn_down_exps" }
              .map { |from, to| ["model.layers.{}.block_sparse_moe.#{from}", "blk.{}.#{to}"] }.freeze
    # Falcon has one norm under this name, or two under others.
    FALCON = { "transformer.h.{}.input_layernorm" => "blk.{}.attn_norm",
               "h.{}.input_layernorm" => "blk.{}.attn_norm" }.freeze
    # Model types whose files are those of another one.
    LIKE = { "xlm-roberta" => "bert", "olmo3" => "olmo2", "granitemoeshared" => "granitemoe",
             "deepseek_v2" => "deepseek_v3", "glm4_moe_lite" => "deepseek_v3" }.freeze
    # By architecture: tensors that are several in files, or that checkpoints store without the endings of modules.
    OF_GPT_OSS = {
      "self_attn.sinks" => { "attn_sinks.weight" => nil },
      "mlp.experts.gate_up_proj" => { "ffn_gate_exps.weight" => [:alternate, 0],
                                      "ffn_up_exps.weight" => [:alternate, 1] },
      "mlp.experts.gate_up_proj_bias" => { "ffn_gate_exps.bias" => [:alternate, 0],
                                           "ffn_up_exps.bias" => [:alternate, 1] },
      "mlp.experts.down_proj" => { "ffn_down_exps.weight" => [:columns] },
      "mlp.experts.down_proj_bias" => { "ffn_down_exps.bias" => nil }
    }.freeze
    OF_GRANITE = {
      "block_sparse_moe.input_linear.weight" => { "ffn_gate_exps.weight" => [:half, 0],
                                                  "ffn_up_exps.weight" => [:half, 1] },
      "shared_mlp.input_linear.weight" => { "ffn_gate_shexp.weight" => [:half, 0],
                                            "ffn_up_shexp.weight" => [:half, 1] }
    }.freeze
    WHOLE = { "gpt-oss" => OF_GPT_OSS, "granitemoe" => OF_GRANITE }.freeze
    # By architecture: what files call parts that others have under other names.
    CALLED = %w[lfm2 lfm2moe].to_h do |name|
      [name, { "ssm_in" => "shortconv.in_proj", "ssm_conv1d" => "shortconv.conv", "ssm_out" => "shortconv.out_proj" }]
    end.freeze
    # The matrix behind DeepSeek's latents.
    LATENT = "self_attn.kv_b_proj.weight"
    # Numbers of xIELU in each layer, which are keys of files.
    XIELU = /\Amodel\.layers\.(\d+)\.mlp\.act_fn\.(alpha_n|alpha_p|beta|eps)\z/
    IN_LAYER = /\Amodel\.layers\.(\d+)\.(.*)\z/
    # Matrices that GPT-2 stores by inputs.
    BY_INPUTS = /\Ablk\.\d+\.(?:attn_qkv|attn_output|ffn_up|ffn_down)\.weight\z/
    private_constant :FALCON, :LIKE, :OF_GPT_OSS, :OF_GRANITE, :WHOLE, :CALLED, :LATENT, :XIELU, :IN_LAYER, :BY_INPUTS
    private_constant :NEIGHBOURS, :ONE_MORE, :MEANT, :COMPUTED, :EXPERT, :ENDINGS, :MIXTRAL

    attr_reader :architecture

    # @return [Array<String>] the model types that can be written
    def self.model_types
      GgufKeys::MODEL_TYPES.keys
    end

    # @param file [String] the `config.json`
    def initialize(config, weights, file)
      @config = config
      @weights = weights
      @file = file
      unless self.class.model_types.include?(config["model_type"])
        raise UnsupportedModelError, "#{file}: models of the type #{config["model_type"].inspect} can't be written " \
                                     "as GGUF files; those of #{self.class.model_types.join(", ")} can"
      end

      @architecture, @transposed, modules = SupportedModels.gguf_names(file) || like_another
      @modules = table(modules)
      @modules.merge!(FALCON) if architecture == "falcon"
      @keys = GgufKeys.new(config, architecture, file)
      @keys.check
    end

    def layer_count
      @keys.layer_count
    end

    # How many queries share a key.
    def group_count
      @keys.head_count / @keys.key_head_count
    end

    # @return [Integer, nil]
    def expert_count
      @keys.expert_count
    end

    def vocabulary_size
      stem = stems.keys.find { |name| stems[name] == "token_embd" }
      stem && @weights.info("#{stem}.weight")&.dig(:shape, 0) ||
        raise(CorruptModelError, "#{@weights.files.first}: tensor \"model.embed_tokens.weight\" is missing")
    end

    # Whether the output has the token table's weights.
    def tied?
      return @tied unless @tied.nil?

      pair = %w[output token_embd].map { |name| stems.key(name) }
      @tied = pair.first.nil? || (@config["tie_word_embeddings"] && same?(pair)) || false
    end

    # @return [Hash{String => Object}]
    def metadata
      experts = whole.any? || stems.values.any? { |name| name.match?(/_exps\z/) }
      @keys.metadata(vocabulary_size, experts: experts).merge(xielu)
    end

    # @return [Array<Hash>] `name:`, `shape:`, `from:` (several of experts), of arranged rows `rows:`, of norms
    #   that store one less `add:`; `data:` of computed ones
    def tensors
      experts, found = names.partition { |name| name.match?(EXPERT) && renamed(name).match?(/_exps\.\w+\z/) }
      found = found.reject { |name| tied? && renamed(name).start_with?("output.") }
      found = found.map { |name| tensor(name) } + stacks(experts) + whole
      found += @keys.tensors.map { |name, numbers| { name: name, shape: [numbers.size], data: numbers.pack("e*") } }
      found.sort_by { |one| order(one[:name]) }
    end

    private

    # Files of these models call themselves otherwise.
    def like_another
      other = LIKE.fetch(@config["model_type"], "llama")
      Tempfile.create(["config", ".json"]) do |copy|
        copy.write(JSON.generate(@config.merge("model_type" => other)))
        copy.flush
        architecture, transposed, modules = SupportedModels.gguf_names(copy.path)
        [architecture, transposed, other == "llama" ? modules + MIXTRAL : modules]
      end
    end

    def table(modules)
      modules.each_with_object({}) do |(from, to), all|
        own = CALLED.fetch(architecture, {}).find { |part, _| to.end_with?(".#{part}") }
        all[from] = own ? to.sub(*own) : to unless all[from]&.end_with?(MEANT)
      end
    end

    def names
      @names ||= @weights.names.grep_v(COMPUTED).reject do |name|
        @keys.left_out?(name) || whole_parts(name) || (architecture == "apertus" && name.match?(XIELU))
      end
    end

    # One number of each layer.
    def xielu
      return {} unless architecture == "apertus"

      found = @weights.names.filter_map { |name| name.match(XIELU) }.group_by { |match| match[2] }
      found.to_h do |key, matches|
        check_xielu(matches)
        in_order = matches.sort_by { |match| match[1].to_i }
        numbers = in_order.map { |match| @weights.encoded(match[0], "f32").unpack1("e") }
        ["xielu.#{key}", GgufWriter::Floats.new(numbers)]
      end
    end

    def check_xielu(matches)
      shapes = matches.map { |match| @weights.info(match[0])[:shape] }
      return if shapes.size == layer_count && shapes.all? { |shape| shape.inject(1, :*) == 1 }

      raise CorruptModelError, "#{@weights.info(matches.first[0])[:file]}: #{matches.first[0]} must be one number in " \
                               "each of #{layer_count} layers"
    end

    # What files have of a tensor outside of modules, by the number of its layer.
    def whole_parts(name)
      return if @keys.left_out?(name)

      found = name.match(IN_LAYER) or return
      parts = found[2] == LATENT && architecture == "deepseek2" ? latent : WHOLE.dig(architecture, found[2])
      parts&.transform_keys { |part| "blk.#{found[1]}.#{part}" }
    end

    # What a latent becomes in each head: files have keys by inputs.
    def latent
      heads = @keys.head_count
      plain, values = @keys.latent_sizes
      { "attn_k_b.weight" => [:heads_by_inputs, heads, 0, plain], "attn_v_b.weight" => [:heads, heads, plain, values] }
    end

    def whole
      @whole ||= @weights.names.flat_map do |name|
        (whole_parts(name) || {}).map do |part, rows|
          { from: name, name: part, shape: arranged(@weights.info(name)[:shape], rows), rows: rows }
        end
      end
    end

    def arranged(shape, rows)
      *before, inputs, outputs = shape
      case rows&.first
      when :columns then [*before, outputs, inputs]
      when :after then [shape.first - rows.last, *shape.drop(1)]
      when :alternate then shape.size > 2 ? [*before, outputs / 2, inputs] : [inputs, outputs / 2]
      when :half then [*before, inputs / 2, outputs]
      when :heads then [rows[1], rows[3], outputs]
      when :heads_by_inputs then [rows[1], outputs, rows[3]]
      else shape
      end
    end

    # The modules of the checkpoint that are one of the whole model.
    def stems
      @stems ||= names.to_h do |name|
        stem = name.rpartition(".").first
        [stem, renamed(name).rpartition(".").first]
      end
    end

    # The name in the file. Numbers in a name are those of a layer and of an expert.
    def renamed(name)
      stem, _, ending = name.rpartition(".")
      numbers = []
      template = stem.gsub(/(?<=\.)\d+(?=\.|\z)/) do |number|
        numbers << number
        numbers.size == 1 ? "{}" : "*"
      end
      # A parameter that is a part by itself.
      found = @modules["#{template}.#{ending}"]
      return found.sub("{}", numbers.first.to_s) if found

      # Encoders may stand below a name of their own, beside a head.
      found = @modules[template] || @modules[template.sub(/\A[a-z_]+\./, "")]
      raise UnsupportedModelError, unknown(name) unless found

      "#{found.sub("{}", numbers.first.to_s)}.#{ENDINGS.fetch(ending, ending)}"
    end

    def unknown(name)
      "#{@weights.info(name)[:file]}: tensor #{name.inspect} has no name in GGUF files of #{architecture}"
    end

    def stacks(names)
      groups = names.group_by { |name| renamed(name) }
      groups.map do |stack, members|
        members = members.sort_by { |name| name.scan(/\.(\d+)(?=\.)/).last.first.to_i }
        unless members.size == expert_count
          raise CorruptModelError, "#{@file}: layer #{stack[/\d+/]} has #{members.size} experts instead of " \
                                   "#{expert_count}"
        end

        { from: members, name: stack, shape: [members.size, *@weights.info(members.first)[:shape]] }
      end
    end

    def tensor(name)
      result = { from: name, name: renamed(name), shape: @weights.info(name)[:shape] }
      result[:rows] = rows(result[:name])
      result[:shape] = arranged(result[:shape], result[:rows])
      result[:add] = 1.0 if ONE_MORE.include?(architecture) && result[:name].end_with?("norm.weight")
      result[:shape] = squeezed(result)
      result
    end

    # A row that is multiplied with is a vector there; filters have one channel.
    def squeezed(tensor)
      return tensor[:shape].last(1) if tensor[:name].end_with?("ffn_gate_inp_shexp.weight")

      tensor[:name].end_with?("shortconv.conv.weight") ? tensor[:shape] - [1] : tensor[:shape]
    end

    # How the rows of a tensor are arranged, if they are.
    def rows(name)
      return [:columns] if @transposed && name.match?(BY_INPUTS)
      return [:after, @keys.unused_positions] if name.start_with?("position_embd.") && @keys.unused_positions.positive?

      part = name.split(".")[2]
      return @keys.fused_rows if part == "attn_qkv"

      heads = { "attn_q" => @keys.head_count, "attn_k" => @keys.key_head_count }[part]
      [:neighbours, heads] if heads && NEIGHBOURS.include?(architecture)
    end

    def order(name)
      layer = name[/\Ablk\.(\d+)\./, 1]
      [layer ? 1 : 0, layer.to_i, name]
    end

    # Some checkpoints store the head that they tie.
    def same?(stems)
      pair = stems.map { |stem| "#{stem}.weight" }
      pair.map { |name| @weights.info(name)[:shape] }.uniq.one? &&
        pair.map { |name| @weights.encoded(name, "f32").hash }.uniq.one?
    end
  end
end
