# frozen_string_literal: true

module Candle
  # Which layers see a window alone, in the keys of a GGUF file. What these can't say is refused.
  #
  # @api private
  class GgufWindows
    # By architecture: every so many layers one sees everything, which files don't say.
    PATTERNS = { "gemma2" => 2, "gemma3" => 6, "gpt-oss" => 2, "cohere2" => 4, "afmoe" => 4 }.freeze
    # What configurations call them.
    WORDS = %w[sliding_window_pattern _sliding_window_pattern global_attn_every_n_layers].freeze
    # Architectures whose files list the layers, and every so many of which one sees everything otherwise.
    LISTED = { "exaone4" => 4, "exaone-moe" => 4, "olmo2" => 4 }.freeze
    # Those whose files have windows in all layers, or 0 where there are none.
    EVERYWHERE = "phi3"
    # Those whose windows count where nothing else is said.
    MEANT = %w[llama starcoder2 dots1 mistral3 phimoe].freeze
    WINDOWED = "sliding_attention"
    private_constant :PATTERNS, :WORDS, :LISTED, :EVERYWHERE, :MEANT, :WINDOWED

    # @param config [GgufConfig]
    # @param architecture [String]
    # @param layers [Integer]
    def initialize(config, architecture, layers)
      @config = config
      @architecture = architecture
      @layers = layers
    end

    # Refuses windows that files of the architecture don't say.
    def check
      return unless used?

      window = @config.size("sliding_window")
      return check_pattern if PATTERNS.key?(@architecture)
      return check_listed if LISTED.key?(@architecture)
      return if @architecture == EVERYWHERE || window >= @config.size("max_position_embeddings") || nowhere?
      return if !MEANT.include?(@architecture) && !@config["use_sliding_window"]

      @config.refuse("attention in windows of #{window} tokens has no GGUF form")
    end

    # @param rope [GgufRope]
    # @return [Hash{String => Object}]
    def metadata(rope)
      check_bases(rope) if @architecture == "olmo2"
      return { KEY => GgufWriter.u32(used? ? @config.size("sliding_window") : 0) } if @architecture == EVERYWHERE
      return { KEY => GgufWriter.u32(0) } if @architecture == "phimoe"
      return {} unless used? && (PATTERNS.key?(@architecture) || LISTED.key?(@architecture))

      keys = { KEY => GgufWriter.u32(@config.size("sliding_window")) }
      keys["#{KEY}_pattern"] = GgufWriter::Flags.new(windowed) if LISTED.key?(@architecture)
      keys["rope.freq_base_swa"] = rope.local_theta if @architecture == "gemma3"
      keys
    end

    KEY = "attention.sliding_window"
    private_constant :KEY

    private

    def used?
      @config["use_sliding_window"] != false && ![nil, 0].include?(@config["sliding_window"])
    end

    def types
      found = @config.of_kind(@config["layer_types"], Array, "layer_types")
      return found if found.nil? || found.size == @layers

      raise CorruptModelError, "#{@config.file}: layer_types names #{found.size} of #{@layers} layers"
    end

    def nowhere?
      types&.none?(WINDOWED)
    end

    # For each layer whether it has a window.
    def windowed
      types&.map { |type| type == WINDOWED } || every(LISTED.fetch(@architecture))
    end

    def every(count)
      Array.new(@layers) { |layer| (layer + 1) % count != 0 }
    end

    def check_pattern
      count = PATTERNS.fetch(@architecture)
      said = WORDS.filter_map { |word| @config[word] }.first
      return if types ? types.map { |type| type == WINDOWED } == every(count) : [nil, count].include?(said)

      @config.refuse("layers with windows other than all but every #{count}th have no GGUF form")
    end

    # Files of Olmo 3 have one base, whatever is scaled.
    def check_bases(rope)
      local = @config["rope_parameters"]
      return unless local.is_a?(Hash) && local.key?("sliding_attention") && rope.local_theta != rope.theta

      @config.refuse("rope_theta: #{rope.local_theta} of sliding_attention has no GGUF form")
    end

    # Patterns of letters, as early configurations of EXAONE have them, are in layer_types, too.
    def check_listed
      said = @config["sliding_window_pattern"]
      return if types || [nil, LISTED.fetch(@architecture)].include?(said)

      @config.refuse("sliding_window_pattern: #{Arguments.shown(said)} without layer_types has no GGUF form")
    end
  end
end
