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
    LARGE = "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
    SMALL = "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
    CASED = "[^\\r\\n\\p{L}\\p{N}]?[#{LARGE}]*[#{SMALL}]+#{CONTRACTIONS}?|" \
            "[^\\r\\n\\p{L}\\p{N}]?[#{LARGE}]+[#{SMALL}]*#{CONTRACTIONS}?|\\p{N}{1,3}|" \
            " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+".freeze
    # Mistral's, without contractions.
    TEKKEN = "[^\\r\\n\\p{L}\\p{N}]?[#{LARGE}]*[#{SMALL}]+|[^\\r\\n\\p{L}\\p{N}]?[#{LARGE}]+[#{SMALL}]*|\\p{N}|" \
             " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+".freeze
    # Seed's, and what DeepSeek 3 cuts with after numbers and Chinese and Japanese characters.
    SEED = "#{CONTRACTIONS}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|" \
           "\\s+(?!\\S)|\\s+".freeze
    DEEPSEEK = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|" \
               " ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
    # Tiktoken's words.
    CL100K = "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|" \
             "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
    # The names of pre-tokenizers by the patterns that they cut with.
    PRE = {
      [] => "gpt-2", [GPT2] => "gpt-2",
      [format(WORDS, "\\p{N}{1,3}")] => "llama-bpe", [format(WORDS, "\\p{N}")] => "qwen2",
      ["\\p{N}"] => "smollm", ["\\p{N}", GPT2] => "smollm",
      [TEKKEN] => "tekken", [SEED] => "seed-coder", [CL100K] => "dbrx",
      ["\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK] => "deepseek-v3",
      [CASED] => "gpt-4o", ["Punctuation", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"] => "falcon"
    }.freeze
    ROLES = { "bos_token" => "bos_token_id", "eos_token" => "eos_token_id", "unk_token" => "unknown_token_id",
              "pad_token" => "padding_token_id" }.freeze
    private_constant :KINDS, :CONTRACTIONS, :GPT2, :WORDS, :LARGE, :SMALL, :CASED, :PRE, :ROLES,
                     :TEKKEN, :SEED, :DEEPSEEK, :CL100K

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
      check
      found = case @tokenizer.dig("model", "type")
              when "BPE" then pieces? ? of_pieces : of_bytes
              when "WordPiece" then of_words
              when "Unigram" then of_likely_pieces
              else
                raise UnsupportedModelError,
                      "#{@file}: tokenizers of the kind #{@tokenizer.dig("model", "type").inspect} can't be written " \
                      "into GGUF files; those of BPE, WordPiece and Unigram can"
              end
      shared.merge(found, template)
    end

    private

    # What is read below, in the kinds that it has.
    def check
      damaged("model") unless model.is_a?(Hash)
      damaged("model.vocab") unless vocabulary?(model["vocab"])
      damaged("model.merges") unless list?(model["merges"]) { |one| merge?(one) }
      damaged("added_tokens") unless list?(@tokenizer["added_tokens"]) { |one| added?(one) }
      %w[normalizer pre_tokenizer post_processor].each { |part| check_steps(part) }
      damaged("tokenizer_config.json", nil) unless @settings.is_a?(Hash)
    end

    def list?(value, &)
      value.nil? || (value.is_a?(Array) && value.all?(&))
    end

    def unigram?
      model["type"] == "Unigram"
    end

    def vocabulary?(value)
      return value.is_a?(Array) && value.all? { |one| piece?(one) } if unigram?

      value.is_a?(Hash) && value.each_value.all? { |id| id.is_a?(Integer) && id >= 0 }
    end

    def piece?(value)
      value.is_a?(Array) && value.first.is_a?(String) && value.last.is_a?(Numeric)
    end

    def merge?(value)
      value.is_a?(String) || (value.is_a?(Array) && value.size == 2 && value.all?(String))
    end

    def added?(value)
      value.is_a?(Hash) && value["id"].is_a?(Integer) && value["id"] >= 0 && value["content"].is_a?(String)
    end

    def check_steps(part)
      found = @tokenizer[part]
      damaged(part) unless found.nil? || (found.is_a?(Hash) && steps(found, inside(part)).all?(Hash))
    end

    def inside(part)
      { "normalizer" => "normalizers", "pre_tokenizer" => "pretokenizers", "post_processor" => "processors" }[part]
    end

    def damaged(what, file = @file)
      raise CorruptModelError, [file, "#{what} is missing or of the wrong kind"].compact.join(": ")
    end

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

    # Words begin with a space that is not in texts; GGUF files say nothing of how texts are normalized.
    def of_words
      normalizer = @tokenizer["normalizer"] || {}
      unless normalizer["type"] == "BertNormalizer" && normalizer["lowercase"] == true &&
             [nil, true].include?(normalizer["strip_accents"])
        raise UnsupportedModelError, "#{@file}: GGUF files have no form for normalizers other than BERT's lower case"
      end

      words = tokens.zip(kinds).map do |token, kind|
        next token if kind == KINDS[:control]

        token.start_with?("##") ? token.delete_prefix("##") : "\u2581#{token}"
      end
      { "tokenizer.ggml.model" => "bert", "tokenizer.ggml.pre" => "default",
        "tokenizer.ggml.tokens" => GgufWriter::Strings.new(words),
        "tokenizer.ggml.token_type_count" => GgufWriter.u32(token_types), **word_roles }
    end

    # SentencePiece's Unigram. Of what normalizes texts, files have its table of characters and whether spaces that
    # follow each other are one.
    def of_likely_pieces
      table, merged = normalized
      scores = tokens.each_index.map { |id| Float(model["vocab"].dig(id, 1) || 0) }
      { "tokenizer.ggml.model" => "t5", "tokenizer.ggml.pre" => "default",
        "tokenizer.ggml.scores" => GgufWriter::Floats.new(scores),
        "tokenizer.ggml.token_type_count" => GgufWriter.u32(token_types),
        "tokenizer.ggml.add_space_prefix" => prefixed?, "tokenizer.ggml.add_eos_token" => adds?("eos_token", :last),
        "tokenizer.ggml.remove_extra_whitespaces" => merged,
        "tokenizer.ggml.precompiled_charsmap" => table && GgufWriter::Bytes.new(table) }.compact
    end

    # @return [Array(String, Boolean)] the table of characters, and whether spaces become one
    def normalized
      found = steps(@tokenizer["normalizer"]).group_by { |step| step["type"] }
      other = found.keys - %w[Precompiled Strip Replace]
      unless other.empty?
        raise UnsupportedModelError, "#{@file}: GGUF files have no form for the normalizer #{other.first.inspect} of " \
                                     "Unigram tokenizers"
      end

      table = found["Precompiled"]&.first&.fetch("precompiled_charsmap", nil)
      damaged("precompiled_charsmap") unless table.nil? || table.is_a?(String)
      [table&.unpack1("m0"), found.key?("Replace")]
    rescue ArgumentError
      damaged("precompiled_charsmap")
    end

    def token_types
      found = @config["type_vocab_size"] || 2
      found.is_a?(Integer) && found.between?(0, 1 << 16) ? found : damaged("type_vocab_size", "config.json")
    end

    # llama.cpp begins texts with the first of all kinds of tokens; the spelling is GGUF's own.
    def word_roles
      roles = { "bos_token_id" => "cls_token", "cls_token_id" => "cls_token", "seperator_token_id" => "sep_token",
                "mask_token_id" => "mask_token" }
      found = roles.to_h { |key, role| ["tokenizer.ggml.#{key}", role_id(role)] }.compact
      found.transform_values { |id| GgufWriter.u32(id) }.merge("tokenizer.ggml.add_bos_token" => true)
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
      damaged("chat_template", nil) unless found.nil? || found.is_a?(String)
      found ? { "tokenizer.chat_template" => found } : {}
    end

    def merges
      @merges ||= (model["merges"] || []).map { |pair| pair.is_a?(String) ? pair.split(" ", 2) : pair }
    end

    def added
      @added ||= (@tokenizer["added_tokens"] || []).to_h { |token| [token["id"], token] }
    end

    # By token.
    def ids
      @ids ||= unigram? ? model["vocab"].each_with_index.to_h { |(token, _), id| [token, id] } : model["vocab"]
    end

    # By id; ids without a token have a placeholder.
    def tokens
      @tokens ||= begin
        all = ids.invert
        added.each { |id, token| all[id] = token["content"] }
        Array.new(@size) { |id| all.fetch(id) { "[PAD#{id}]" } }
      end
    end

    def kinds
      known = ids.values.to_h { |id| [id, true] }
      tokens.each_with_index.map { |token, id| KINDS.fetch(kind(token, id, known)) }
    end

    def kind(token, id, known)
      return :unknown if unigram? ? id == model["unk_id"] : token == model["unk_token"] && pieces?
      return added[id]["special"] ? :control : :user_defined if added.key?(id)
      return :unused unless known.key?(id)

      pieces? && token.match?(/\A<0x\h\h>\z/) ? :byte : :normal
    end

    def role_id(role)
      content = @settings[role]
      content = content["content"] if content.is_a?(Hash)
      id = content && tokens.index(content)
      key = "#{role.delete_suffix("_token")}_token_id"
      id ||= Array(@config[key]).first
      # Some say -1 for none.
      return if id.nil? || id == -1
      return id if id.is_a?(Integer) && id.between?(0, @size - 1)

      raise CorruptModelError, "#{@file}: config.json names #{Arguments.shown(id)} as #{key}, of #{@size} tokens"
    end

    def adds_bos?
      said = @settings["add_bos_token"]
      said.nil? ? adds?("bos_token", :first) : said
    end

    # Whether texts begin or end with a token by themselves.
    def adds?(role, place)
      token = role_id(role) or return false
      steps(@tokenizer["post_processor"], "processors").any? do |step|
        found = step["single"]&.public_send(place)
        found.is_a?(Hash) && found.dig("SpecialToken", "id") == tokens[token]
      end
    end

    def steps(part, inside = nil)
      return [] unless part

      return [part] unless part["type"] == "Sequence"

      found = part[inside] || part.values.find { |one| one.is_a?(Array) }
      found.is_a?(Array) ? found : []
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
      # Some files have the ends of lines themselves in patterns.
      PRE.fetch(patterns.map { |pattern| pattern.gsub("\r", "\\r").gsub("\n", "\\n") }) do
        raise UnsupportedModelError, "#{@file}: GGUF files have no name for a pre-tokenizer that cuts by " \
                                     "#{patterns.inspect}"
      end
    end
  end
end
