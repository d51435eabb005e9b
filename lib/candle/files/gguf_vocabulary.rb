# frozen_string_literal: true

module Candle
  # The tokenizer of a checkpoint in the keys of a GGUF file.
  #
  # @api private
  class GgufVocabulary
    # GGUF's numbers for what a token is.
    KINDS = { normal: 1, unknown: 2, control: 3, user_defined: 4, unused: 5, byte: 6 }.freeze
    CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    GPT2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
    WORDS = "#{CONTRACTIONS}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|%s| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" \
            "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+".freeze
    # The names of pre-tokenizers by the patterns that they cut with.
    PRE = {
      [] => "gpt-2", [GPT2] => "gpt-2",
      [format(WORDS, "\\p{N}{1,3}")] => "llama-bpe", [format(WORDS, "\\p{N}")] => "qwen2",
      ["\\p{N}"] => "smollm", ["\\p{N}", GPT2] => "smollm"
    }.freeze
    ROLES = { "bos_token" => "bos_token_id", "eos_token" => "eos_token_id", "unk_token" => "unknown_token_id",
              "pad_token" => "padding_token_id" }.freeze
    private_constant :KINDS, :CONTRACTIONS, :GPT2, :WORDS, :PRE, :ROLES

    def initialize(tokenizer, settings, config, size:, file:, template:)
      unless tokenizer
        raise UnsupportedModelError, "#{file} is missing: a GGUF file needs the tokenizer of tokenizer.json"
      end

      @tokenizer = tokenizer
      @settings = settings
      @config = config
      @size = size
      @file = file
      @template = template
    end

    # @return [Hash{String => Object}]
    def metadata
      unless @tokenizer.dig("model", "type") == "BPE"
        raise UnsupportedModelError, "#{@file}: tokenizers of the kind #{@tokenizer.dig("model", "type").inspect} " \
                                     "can't be written into GGUF files; those of BPE can"
      end

      (pieces? ? of_pieces : of_bytes).merge(shared).merge(template)
    end

    private

    def model
      @tokenizer["model"]
    end

    # Characters, and bytes only for those that are unknown.
    def pieces?
      model["byte_fallback"] == true
    end

    def of_bytes
      { "tokenizer.ggml.model" => "gpt2", "tokenizer.ggml.pre" => pre_tokenizer,
        "tokenizer.ggml.merges" => GgufWriter::Strings.new(merges.map { |pair| pair.join(" ") }) }
    end

    def of_pieces
      ranks = merges.each_with_index.with_object({}) { |(pair, rank), all| all[pair.join] ||= rank }
      scores = tokens.map { |token| -Float(ranks.fetch(token, 0)) }
      { "tokenizer.ggml.model" => "llama", "tokenizer.ggml.pre" => "default",
        "tokenizer.ggml.scores" => GgufWriter::Floats.new(scores),
        "tokenizer.ggml.add_space_prefix" => prefixed? }
    end

    # Whether texts begin with a space that is not there.
    def prefixed?
      steps(@tokenizer["normalizer"]).any? { |step| step["type"] == "Prepend" } ||
        steps(@tokenizer["pre_tokenizer"]).any? do |step|
          step["type"] == "Metaspace" && step["prepend_scheme"] != "never"
        end
    end

    def shared
      ids = ROLES.to_h { |role, key| ["tokenizer.ggml.#{key}", role_id(role)] }.compact
      ids.transform_values! { |id| GgufWriter.u32(id) }
      { "tokenizer.ggml.tokens" => GgufWriter::Strings.new(tokens),
        "tokenizer.ggml.token_type" => GgufWriter::Integers.new(kinds),
        "tokenizer.ggml.add_bos_token" => adds_bos?, **ids }
    end

    def template
      found = @template || @settings["chat_template"]
      found = found.find { |one| one["name"] == "default" }&.fetch("template") if found.is_a?(Array)
      found ? { "tokenizer.chat_template" => found } : {}
    end

    def merges
      @merges ||= (model["merges"] || []).map { |pair| pair.is_a?(String) ? pair.split(" ", 2) : pair }
    end

    def added
      @added ||= (@tokenizer["added_tokens"] || []).to_h { |token| [token["id"], token] }
    end

    # By id; ids without a token have a placeholder.
    def tokens
      @tokens ||= begin
        all = model["vocab"].invert
        added.each { |id, token| all[id] = token["content"] }
        Array.new([@size, all.keys.max.to_i + 1].max) { |id| all.fetch(id) { "[PAD#{id}]" } }.first(@size)
      end
    end

    def kinds
      known = model["vocab"].values.to_h { |id| [id, true] }
      tokens.each_with_index.map { |token, id| KINDS.fetch(kind(token, id, known)) }
    end

    def kind(token, id, known)
      return :unknown if token == model["unk_token"] && pieces?
      return added[id]["special"] ? :control : :user_defined if added.key?(id)
      return :unused unless known.key?(id)

      pieces? && token.match?(/\A<0x\h\h>\z/) ? :byte : :normal
    end

    def role_id(role)
      content = @settings[role]
      content = content["content"] if content.is_a?(Hash)
      id = content && tokens.index(content)
      id || Array(@config["#{role.delete_suffix("_token")}_token_id"]).first
    end

    def adds_bos?
      said = @settings["add_bos_token"]
      return said unless said.nil?

      bos = role_id("bos_token") or return false
      steps(@tokenizer["post_processor"], "processors").any? do |step|
        first = step["single"]&.first
        first.is_a?(Hash) && first.dig("SpecialToken", "id") == tokens[bos]
      end
    end

    def steps(part, inside = nil)
      return [] unless part

      part["type"] == "Sequence" ? part[inside || part.keys.find { |key| part[key].is_a?(Array) }] : [part]
    end

    def pre_tokenizer
      found = steps(@tokenizer["pre_tokenizer"])
      patterns = found.filter_map do |step|
        case step["type"]
        when "Split" then step.dig("pattern", "Regex") || step.dig("pattern", "String")
        when "Digits" then step["individual_digits"] ? "\\p{N}" : "\\p{N}+"
        when "ByteLevel" then step["use_regex"] == false ? nil : GPT2
        else step["type"]
        end
      end
      PRE.fetch(patterns) do
        raise UnsupportedModelError, "#{@file}: GGUF files have no name for a pre-tokenizer that cuts by " \
                                     "#{patterns.inspect}"
      end
    end
  end
end
