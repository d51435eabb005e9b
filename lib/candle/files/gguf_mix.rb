# frozen_string_literal: true

module Candle
  # Which type each tensor of a GGUF file gets, by the rules of llama.cpp's quantizer: most weights have the type that
  # the file is named after, those that matter more have more bits.
  #
  # @api private
  class GgufMix
    # By name: the number of the file type, and the type of most weights.
    TYPES = {
      "f32" => [0, "f32"], "f16" => [1, "f16"], "bf16" => [32, "bf16"],
      "q4_0" => [2, "q4_0"], "q4_1" => [3, "q4_1"], "q5_0" => [8, "q5_0"], "q5_1" => [9, "q5_1"], "q8_0" => [7, "q8_0"],
      "q2_k" => [10, "q2_k"], "q2_k_s" => [21, "q2_k"],
      "q3_k_s" => [11, "q3_k"], "q3_k_m" => [12, "q3_k"], "q3_k_l" => [13, "q3_k"],
      "q4_k_s" => [14, "q4_k"], "q4_k_m" => [15, "q4_k"], "q5_k_s" => [16, "q5_k"], "q5_k_m" => [17, "q5_k"],
      "q6_k" => [18, "q6_k"],
      "iq1_s" => [24, "iq1_s"], "iq1_m" => [31, "iq1_m"],
      "iq2_xxs" => [19, "iq2_xxs"], "iq2_xs" => [20, "iq2_xs"], "iq2_s" => [28, "iq2_xs"], "iq2_m" => [29, "iq2_s"],
      "iq3_xxs" => [23, "iq3_xxs"], "iq3_xs" => [22, "iq3_s"], "iq3_s" => [26, "iq3_s"], "iq3_m" => [27, "iq3_s"],
      "iq4_nl" => [25, "iq4_nl"], "iq4_xs" => [30, "iq4_xs"], "tq1_0" => [36, "tq1_0"], "tq2_0" => [37, "tq2_0"],
      "mxfp4" => [38, "mxfp4"], "mxfp4_moe" => [38, "mxfp4"], "nvfp4" => [39, "nvfp4"]
    }.freeze
    # Other names of the same.
    ALIASES = { "q3_k" => "q3_k_m", "q4_k" => "q4_k_m", "q5_k" => "q5_k_m" }.freeze
    DENSE = %w[f32 f16 bf16].freeze
    # Types that only the importance of columns makes usable.
    WEIGHTED = %w[iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq2_m q2_k_s].freeze
    # Those of them whose other parts get more bits.
    SMALLEST = %w[iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq2_m].freeze
    # What a row becomes that isn't whole blocks.
    NARROW = { "q2_k" => "q4_0", "q3_k" => "q4_0", "q4_k" => "q5_0", "q5_k" => "q5_1", "q6_k" => "q8_0",
               "tq1_0" => "q4_0", "tq2_0" => "q4_0" }.freeze
    # Tensors of matrices that stay exact: routers, positions, small filters.
    EXACT = /_norm\.weight\z|ffn_gate_inp\.|\A(?:position_embd|token_types)\.|ssm_conv1d|shortconv\.conv\./
    # Parts of layers, first match first.
    PARTS = { /attn_qkv\.weight/ => :values, /attn_kv_b\.weight/ => :values, /attn_v\.weight/ => :values,
              /attn_k\.weight/ => :keys, /attn_q\.weight/ => :queries, /attn_output\.weight/ => :attention,
              /ffn_up/ => :up, /ffn_gate/ => :gate, /ffn_down/ => :down }.freeze
    # What eight experts' attention outputs are worth more for.
    OF_EIGHT = %w[q2_k iq3_xs iq3_xxs q3_k_s q3_k_m iq4_nl q4_k_s q4_k_m iq3_s iq3_m iq4_xs].freeze
    # The types of values that many and that few queries share.
    VALUES = { "q2_k" => %w[q4_k q3_k], "q2_k_s" => ["q4_k", nil], "iq3_xs" => ["q4_k", nil], "iq3_s" => ["q4_k", nil],
               "iq3_m" => %w[q4_k q4_k], "q3_k_l" => %w[q5_k q5_k], "iq4_nl" => ["q5_k", nil],
               "iq4_xs" => ["q5_k", nil] }.freeze
    # The types of the last part of MLPs, in the first eighth of the layers and in others.
    DOWN = { "q2_k" => %w[q3_k q3_k], "q2_k_s" => ["q4_k", nil], "q3_k_l" => %w[q5_k q5_k],
             "q4_k_s" => ["q5_k", nil] }.freeze
    # The types of attention outputs.
    SMALL_ATTENTION = { attention: { "iq1_s" => "iq2_xxs", "iq1_m" => "iq2_xxs", "iq2_s" => "iq3_s",
                                     "iq2_m" => "iq3_s" } }.freeze
    SMALL_EIGHT = { keys: "q4_k", attention: "q5_k" }.freeze
    ATTENTION = { "q2_k" => "q3_k", "iq3_xxs" => "iq3_s", "q3_k_m" => "q4_k", "q3_k_l" => "q5_k",
                  "iq3_m" => "q4_k" }.freeze
    # Architectures whose files of 80 layers have few key heads.
    LARGE = %w[llama qwen2 olmo].freeze
    private_constant :DENSE, :WEIGHTED, :SMALLEST, :NARROW, :EXACT, :PARTS, :OF_EIGHT, :VALUES, :DOWN,
                     :SMALL_ATTENTION, :SMALL_EIGHT, :ATTENTION, :LARGE

    # The mix of a name.
    #
    # @param type [String, Symbol]
    # @param importance [Object, nil] what says how much columns matter
    # @return [String] its usual name
    # @raise [ArgumentError] for an unknown one, or one that needs an importance matrix
    def self.named(type, importance: nil)
      name = type.to_s.downcase
      name = ALIASES.fetch(name, name)
      unless TYPES.key?(name)
        raise ArgumentError, "type: #{type.inspect} is unknown; known are #{TYPES.keys.join(", ")}"
      end
      return name if importance || !WEIGHTED.include?(name)

      raise ArgumentError, "type: #{name} needs an importance matrix: give imatrix: or calibration:"
    end

    # @param name [String] of {TYPES}
    # @param architecture [String]
    # @param layers [Integer]
    # @param groups [Integer] how many queries share a key
    # @param experts [Integer] 0 without
    # @param tied [Boolean] whether the token table is the output, too
    # @param importance [Boolean] whether the importance of columns is known
    def initialize(name, architecture:, layers:, groups:, experts: 0, tied: false, importance: false)
      @name = name
      @usual = TYPES.fetch(name).last
      @architecture = architecture
      @layers = layers
      @groups = groups
      @experts = experts
      @tied = tied
      @importance = importance
    end

    # @param tensors [Array<Hash>] `name:`, `shape:`, in the order of the file
    # @return [Array<String>] their types
    def types(tensors)
      @counts = Hash.new(0)
      @value_count = tensors.count { |tensor| part(tensor[:name]) == :values }
      tensors.map { |tensor| type(tensor[:name], tensor[:shape]) }
    end

    private

    def type(name, shape)
      return "f32" if shape.size < 2 || !name.end_with?("weight") || name.match?(EXACT)
      return @usual if DENSE.include?(@usual)

      fitting(wanted(name, shape), shape.last)
    end

    # What the rows of a tensor allow.
    def fitting(type, row)
      elements = ->(one) { GgufWriter::TENSOR_TYPES.fetch(one)[1] }
      return type if (row % elements[type]).zero?

      narrow = type.start_with?("iq") && type != "iq4_nl" ? "iq4_nl" : NARROW.fetch(type, type)
      (row % elements[narrow]).zero? ? narrow : "f16"
    end

    def part(name)
      PARTS.find { |pattern, _| name.match?(pattern) }&.last
    end

    def wanted(name, shape)
      return of_output(shape.last) if name == "output.weight" || (@tied && name == "token_embd.weight")
      return shape.size > 2 ? "mxfp4" : "q8_0" if @name == "mxfp4_moe"
      return of_table if name == "token_embd.weight"

      part = part(name) or return @usual
      number = @counts[part]
      @counts[part] += 1
      better = SMALLEST.include?(@name) ? smallest(part, number) : send(:"of_#{part}", layer(name, number), name)
      better || @usual
    end

    # Experts of a layer count as one.
    def layer(name, number)
      name.match?(/attn_/) || @experts < 2 ? number : name[/\Ablk\.(\d+)\./, 1].to_i
    end

    def of_output(row)
      return "q8_0" if @name == "mxfp4_moe" || @usual == "q8_0" || row % GgufWriter::TENSOR_TYPES.fetch(@usual)[1] != 0

      SMALLEST.include?(@name) || @name == "iq3_xxs" ? "q5_k" : "q6_k"
    end

    def of_table
      case @name
      when "iq2_xxs", "iq2_xs", "iq1_s", "iq1_m" then "q2_k"
      when "iq2_s", "iq2_m", "iq3_xxs" then "iq3_s"
      when "tq1_0", "tq2_0" then "q4_k"
      else @usual
      end
    end

    # IQ1 and IQ2.
    def smallest(part, number)
      better = %w[iq2_s iq2_m].include?(@name) ? "iq3_s" : "q2_k"
      case part
      when :values then @groups >= 4 || @experts >= 4 ? "q4_k" : better
      when :down then number < @layers / 8 ? better : nil
      when :keys, :attention then @experts == 8 ? SMALL_EIGHT[part] : SMALL_ATTENTION.fetch(part, {})[@name]
      end
    end

    def of_values(number, _name)
      type = values_by_mix(number) || @usual
      type = "q5_k" if large? && %w[q3_k q4_k].include?(type)
      @experts == 8 ? "q8_0" : type
    end

    def values_by_mix(number)
      many = @groups >= 4
      return VALUES[@name][many ? 0 : 1] if VALUES.key?(@name)

      case @name
      when "iq3_xxs" then of_shared_values(many)
      when "q3_k_m" then number < 2 ? "q5_k" : "q4_k"
      when "q4_k_m", "q5_k_m" then more_bits?(number, @value_count) ? "q6_k" : nil
      when "q4_k_s" then number < 4 ? "q5_k" : nil
      end
    end

    def of_shared_values(many)
      return "q4_k" if many

      @importance ? nil : "iq3_s"
    end

    def large?
      @layers == 80 && LARGE.include?(@architecture) && (@architecture != "llama" || @groups > 1)
    end

    def of_keys(_number, _name)
      @experts == 8 ? "q8_0" : of_queries
    end

    # Below three bits only the importance of columns makes blocks usable.
    def of_queries(*)
      { "iq3_xs" => "iq3_xxs", "iq3_xxs" => @importance ? "iq2_s" : nil }[@name]
    end

    def of_down(layer, _name)
      first = layer < @layers / 8
      return DOWN[@name][first ? 0 : 1] if DOWN.key?(@name)

      case @name
      when "q3_k_m" then layer < @layers / 16 ? "q5_k" : "q4_k"
      when "iq3_m" then first || of_eight_down?(layer) ? "q4_k" : nil
      when "q4_k_m", "q5_k_m" then more_bits?(layer, @layers) ? "q6_k" : nil
      else of_uneven_down(first)
      end
    end

    def of_eight_down?(layer)
      @experts == 8 && more_bits?(layer, @layers)
    end

    # Inputs of the first layers are so uneven that an importance matrix would leave large errors without minimums.
    def of_uneven_down(first)
      return first ? "q4_k" : "q3_k" if @name == "iq3_xxs" && !@importance
      return unless first

      @importance ? { "q4_0" => "q4_1", "q5_0" => "q5_1" }[@name] : { "iq4_nl" => "q5_k", "iq4_xs" => "q5_k" }[@name]
    end

    def of_attention(_number, _name)
      return ATTENTION[@name] unless @experts == 8

      OF_EIGHT.include?(@name) ? "q5_k" : nil
    end

    def of_gate(layer, _name)
      "iq3_xxs" if @name == "iq3_xs" && layer >= @layers / 8 && layer < 7 * @layers / 8
    end
    alias of_up of_gate

    # The first and the last eighth of the layers, and every third between them.
    def more_bits?(layer, count)
      layer < count / 8 || layer >= 7 * count / 8 || (layer - (count / 8)) % 3 == 2
    end
  end
end
