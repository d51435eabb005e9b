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
    NEIGHBOURS = %w[llama granite smollm3].freeze
    # Architectures whose norms multiply by one more than they store.
    ONE_MORE = %w[gemma gemma2 gemma3].freeze
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
    # What gpt-oss stores without the endings of modules, and what files have of it.
    WHOLE = {
      "self_attn.sinks" => { "attn_sinks.weight" => nil },
      "mlp.experts.gate_up_proj" => { "ffn_gate_exps.weight" => [:alternate, 0],
                                      "ffn_up_exps.weight" => [:alternate, 1] },
      "mlp.experts.gate_up_proj_bias" => { "ffn_gate_exps.bias" => [:alternate, 0],
                                           "ffn_up_exps.bias" => [:alternate, 1] },
      "mlp.experts.down_proj" => { "ffn_down_exps.weight" => [:columns] },
      "mlp.experts.down_proj_bias" => { "ffn_down_exps.bias" => nil }
    }.freeze
    IN_LAYER = /\Amodel\.layers\.(\d+)\.(.*)\z/
    # Matrices that GPT-2 stores by inputs.
    BY_INPUTS = /\Ablk\.\d+\.(?:attn_qkv|attn_output|ffn_up|ffn_down)\.weight\z/
    private_constant :FALCON, :WHOLE, :IN_LAYER, :BY_INPUTS
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
      @keys.metadata(vocabulary_size, experts: experts)
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
      other = @config["model_type"] == "xlm-roberta" ? "bert" : "llama"
      Tempfile.create(["config", ".json"]) do |copy|
        copy.write(JSON.generate(@config.merge("model_type" => other)))
        copy.flush
        architecture, transposed, modules = SupportedModels.gguf_names(copy.path)
        [architecture, transposed, other == "llama" ? modules + MIXTRAL : modules]
      end
    end

    def table(modules)
      modules.each_with_object({}) do |(from, to), all|
        all[from] = to unless all[from]&.end_with?(MEANT)
      end
    end

    def names
      @names ||= @weights.names.grep_v(COMPUTED).reject { |name| @keys.left_out?(name) || whole_parts(name) }
    end

    # What files have of a tensor outside of modules, by the number of its layer.
    def whole_parts(name)
      return unless architecture == "gpt-oss" && (found = name.match(IN_LAYER)) && WHOLE.key?(found[2])

      WHOLE.fetch(found[2]).transform_keys { |part| "blk.#{found[1]}.#{part}" }
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
      # A row that is multiplied with is a vector there.
      result[:shape] = result[:shape].last(1) if result[:name].end_with?("ffn_gate_inp_shexp.weight")
      result
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
