# frozen_string_literal: true

require "json"

Candle::Native.complete(:Tokenizer)

module Candle
  # Text to token ids and back, as the model's own tokenizer does it.
  #
  # A tokenizer never changes: {#with_padding} and {#with_truncation} return new ones that share the
  # vocabulary. Any number of threads may use one at the same time.
  #
  # @example
  #   tokenizer = Candle::Tokenizer.from_file("spec/fixtures/tokenizers/wordpiece/tokenizer.json")
  #   ids = tokenizer.encode("The cat sat.")
  #   tokenizer.decode(ids) # => "the cat sat."
  class Tokenizer
    include Uncopyable

    # Token ids that stay in the engine.
    #
    # @api private
    class Ids
      # @!method size
      #   @return [Integer]

      # @!method to_a
      #   @return [Array<Integer>]

      # @!method +(more)
      #   @param more [Ids, Array<Integer>]
      #   @return [Ids]

      # @!method split(id)
      #   @param id [Integer] a token
      #   @return [Array<Ids>] what stands before, between and after its places

      # Only a tokenizer makes them.
      private_class_method :new
    end

    class << self
      # The same as {.from_pretrained}, or as {.from_file} for a `tokenizer.json`.
      #
      # @param source [String, Pathname]
      # @param options [Hash] as {.from_pretrained} takes them
      # @return [Tokenizer]
      def new(source, **options)
        source = TextInput.path(source, "source")
        source.end_with?(".json") ? from_file(source) : from_pretrained(source, **options)
      end

      # Reads a `tokenizer.json`. Truncation and padding that the file may ask for are left to
      # {#with_truncation} and {#with_padding}.
      #
      # @param path [String, Pathname]
      # @return [Tokenizer]
      # @raise [ModelNotFoundError] when there is no such file
      # @raise [CorruptModelError, UnsupportedModelError] when it can't be read, with the reason
      def from_file(path)
        _from_file(TextInput.path(path, "path"))
      end

      # Reads the tokenizer of a model: of a directory, of a GGUF file, or from the hub.
      #
      # @example
      #   tokenizer = Candle::Tokenizer.from_pretrained("spec/fixtures/tokenizers/wordpiece")
      #   tokenizer.get_special_tokens["cls_token"] # => 2
      #
      # @param source [String, Pathname] a directory, a `.gguf` file or an id such as
      #   `"sentence-transformers/all-MiniLM-L6-v2"`; a path that exists wins
      # @param revision [String, nil] a branch, tag or commit of the hub
      # @param token [String, nil] for private and gated models, before `HF_TOKEN`
      # @param cache_dir [String, Pathname, nil] where downloaded models are kept, before `HF_HUB_CACHE`
      # @return [Tokenizer]
      # @raise [ModelNotFoundError, DownloadError, OfflineError] when it can't be found or fetched
      # @raise [CorruptModelError, UnsupportedModelError] when it can't be read, with the reason
      def from_pretrained(source, revision: nil, token: nil, cache_dir: nil)
        source = TextInput.path(source, "source")
        settings = Hub.settings(revision, token, cache_dir)
        packs = ModelGems.packs([source])
        SourceHints.explained(source) { _from_pretrained(source, settings.merge(packs: packs)) }
      end
    end

    # A call with a very long text can be interrupted between the steps of tokenization.
    #
    # @example
    #   tokenizer = Candle::Tokenizer.from_file("spec/fixtures/tokenizers/byte_level_bpe/tokenizer.json")
    #   tokenizer.decode(tokenizer.encode("Hello, world!")) # => "Hello, world!"
    #
    # @param text [String]
    # @param pair [String, nil] a second text, for models that read two
    # @param add_special_tokens [Boolean] whether to add those the model expects, such as `[CLS]`
    # @return [Array<Integer>] the ids of its tokens
    # @raise [InvalidInputError] when the text isn't a String or isn't valid UTF-8
    def encode(text, pair: nil, add_special_tokens: true)
      _encode(*inputs(text, pair), add_special_tokens ? true : false)
    end

    # The ids of a prompt on their way to a model.
    #
    # @api private
    # @param text [String]
    # @param add_special_tokens [Boolean, nil] nil adds what the model begins with, unless the text has it
    # @return [Ids]
    def ids(text, add_special_tokens: nil)
      wanted = add_special_tokens ? true : false unless NilClass === add_special_tokens
      _ids(TextInput.utf8(text, "text"), wanted)
    end

    # @param text [String]
    # @param pair [String, nil] a second text
    # @param add_special_tokens [Boolean]
    # @return [Array<String>] its tokens as the vocabulary writes them
    def encode_to_tokens(text, pair: nil, add_special_tokens: true)
      detailed(text, pair, add_special_tokens).fetch(:tokens)
    end

    # @param text [String]
    # @param pair [String, nil] a second text
    # @param add_special_tokens [Boolean]
    # @return [Hash] `{ids: [...], tokens: [...]}`
    def encode_with_tokens(text, pair: nil, add_special_tokens: true)
      detailed(text, pair, add_special_tokens).slice(:ids, :tokens)
    end

    # @example
    #   tokenizer = Candle::Tokenizer.from_file("spec/fixtures/tokenizers/wordpiece/tokenizer.json")
    #   text = "Ünïted cats"
    #   result = tokenizer.encode_with_offsets(text, add_special_tokens: false)
    #   first, last = result[:offsets].last
    #   text[first...last] # => "cats"
    #
    # @param text [String]
    # @param pair [String, nil] a second text; its offsets count from its own beginning
    # @param add_special_tokens [Boolean]
    # @return [Hash] `ids`, `tokens`, `offsets` (`[start, end]` in characters, so that
    #   `text[start...end]` is the token's text), `word_ids`, `type_ids`, `special_tokens_mask` and
    #   `attention_mask`, each with one element per token
    def encode_with_offsets(text, pair: nil, add_special_tokens: true)
      detailed(text, pair, add_special_tokens)
    end

    # Encodes many texts in parallel.
    #
    # @param texts [Array<String>]
    # @param add_special_tokens [Boolean]
    # @return [Array<Array<Integer>>] ids for each text, in the given order
    # @raise [InvalidInputError] naming the index of what isn't a text
    def encode_batch(texts, add_special_tokens: true)
      _encode_batch(TextInput.utf8_all(texts), add_special_tokens ? true : false)
    end

    # @param texts [Array<String>]
    # @param add_special_tokens [Boolean]
    # @return [Array<Array<String>>] tokens for each text, in the given order
    def encode_batch_to_tokens(texts, add_special_tokens: true)
      _encode_batch_to_tokens(TextInput.utf8_all(texts), add_special_tokens ? true : false)
    end

    # @param ids [Array<Integer>]
    # @param skip_special_tokens [Boolean] whether to leave out tokens such as `[CLS]`
    # @return [String]
    # @raise [InvalidInputError] for an id that no token has
    def decode(ids, skip_special_tokens: true)
      _decode(token_ids(ids), skip_special_tokens ? true : false)
    end

    # @param id [Integer]
    # @return [String, nil] the token as the vocabulary writes it
    def id_to_token(id)
      raise InvalidInputError, "id must be an Integer, not #{Arguments.shown(id)}" unless Integer === id

      _id_to_token(id) if id.between?(0, MAX_ID)
    end

    # @param token [String]
    # @return [Integer, nil]
    def token_to_id(token)
      _token_to_id(TextInput.utf8(token, "token"))
    end

    # @param with_added_tokens [Boolean] whether to include tokens beyond the model's vocabulary
    # @return [Hash{String => Integer}] token to id, in the order of ids
    def get_vocab(with_added_tokens: true)
      _vocab(with_added_tokens ? true : false)
    end

    # @param with_added_tokens [Boolean] whether to count tokens beyond the model's vocabulary
    # @return [Integer]
    def vocab_size(with_added_tokens: true)
      _vocab_size(with_added_tokens ? true : false)
    end

    # @example
    #   tokenizer = Candle::Tokenizer.from_pretrained("spec/fixtures/tokenizers/wordpiece")
    #   tokenizer.with_padding(length: 6).encode("cats").length # => 6
    #
    # @param enabled [Boolean] false for a tokenizer that does not pad
    # @param direction [String, Symbol] the side to pad: `right` or `left`
    # @param pad_id [Integer, nil] nil takes the tokenizer's own padding token
    # @param pad_token [String, nil] nil takes the tokenizer's own padding token
    # @param pad_type_id [Integer]
    # @param length [Integer, nil] the length to pad to; nil is the longest of the batch
    # @param max_length [Integer, Boolean, nil] the same as `length`; true is the longest of the batch
    # @param pad_to_multiple_of [Integer, nil] round the length up to a multiple
    # @return [Tokenizer] a new one that pads
    def with_padding(enabled: true, direction: "right", pad_id: nil, pad_token: nil, pad_type_id: 0,
                     length: nil, max_length: nil, pad_to_multiple_of: nil)
      return _without_padding unless enabled

      length ||= max_length unless max_length == true
      pad_id, pad_token = pad_pair(pad_id, pad_token && TextInput.utf8(pad_token, "pad_token"))
      _with_padding(left?(direction), [token_id(pad_id), token_id(pad_type_id), pad_token],
                    Arguments.count(length, "length"), Arguments.count(pad_to_multiple_of, "pad_to_multiple_of"))
    end

    # @example
    #   tokenizer = Candle::Tokenizer.from_pretrained("spec/fixtures/tokenizers/wordpiece")
    #   tokenizer.with_truncation(4).encode("the cat sat on the mat").length # => 4
    #
    # @param max_length [Integer, nil] how many tokens to keep, special ones included; nil keeps all
    # @param strategy [String, Symbol] which text of a pair gives way: `longest_first`, `only_first`
    #   or `only_second`; where that text can't make enough room, both give way
    # @param direction [String, Symbol] the side to cut: `right` or `left`
    # @return [Tokenizer] a new one that truncates
    def with_truncation(max_length, strategy: "longest_first", direction: "right")
      strategy = Arguments.label(strategy, "strategy")
      _with_truncation(Arguments.count(max_length, "max_length"), strategy, left?(direction))
    end

    # @example
    #   tokenizer = Candle::Tokenizer.from_pretrained("spec/fixtures/tokenizers/wordpiece")
    #   tokenizer.get_special_tokens["mask_token"] # => 4
    #
    # @return [Hash{String => Integer}] role to id, such as `"cls_token" => 101`
    def get_special_tokens # rubocop:disable Naming/AccessorMethodName
      _special_tokens.each_with_object({}) { |(role, _, id), tokens| tokens[role] = id if role }
    end

    # @return [Array<Integer>] the ids that end a generated text
    def eos_token_ids
      _end_ids
    end

    # @return [Hash{String => String}] the checkpoint's chat templates by name
    def chat_templates
      _chat_templates.to_h
    end

    # Renders a conversation with the checkpoint's own chat template.
    #
    # @example
    #   tokenizer = Candle::Tokenizer.from_pretrained("spec/fixtures/tokenizers/byte_level_bpe")
    #   tokenizer.apply_chat_template([{ role: "user", content: "Hi" }])
    #   # => "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    #
    # @param messages [Array<Hash>] with `role` and `content`, as strings or symbols
    # @param add_generation_prompt [Boolean] whether to open the assistant's turn
    # @param tools [Array<Hash>, nil] tool definitions as JSON schema
    # @param documents [Array<Hash>, nil] for templates that quote documents
    # @param chat_template [String, nil] another template, or the name of one of {#chat_templates}
    # @param variables [Hash] further variables of the template, such as `enable_thinking`
    # @return [String]
    # @raise [InvalidInputError] when there is no template, or it refuses the messages
    def apply_chat_template(messages, add_generation_prompt: true, tools: nil, documents: nil, chat_template: nil,
                            variables: {})
      messages = Messages.checked(messages) { [*chat_templates.values, *(chat_template if String === chat_template)] }
      render(messages, add_generation_prompt: add_generation_prompt, tools: tools, documents: documents,
                       chat_template: chat_template, variables: variables)
    end

    # Renders messages that were checked.
    #
    # @api private
    # @see #apply_chat_template
    def render(messages, add_generation_prompt: true, tools: nil, documents: nil, chat_template: nil, variables: {})
      request = { messages: messages, tools: tools, documents: documents, variables: variables,
                  add_generation_prompt: add_generation_prompt ? true : false }
      _apply_chat_template(Arguments.json(request, "the messages"),
                           chat_template && Arguments.label(chat_template, "chat_template"))
    end

    # @return [Hash] what this tokenizer is and how it cuts and pads
    def options
      {
        source: _source, model: _model_kind, vocab_size: vocab_size, model_max_length: _model_max_length,
        truncation: _truncation && %i[max_length strategy direction].zip(_truncation).to_h,
        padding: _padding && PADDING_FIELDS.zip(_padding).to_h,
        chat_templates: chat_templates.keys
      }
    end

    # @return [Integer, nil] the longest input the model takes, where its configuration says so
    def model_max_length
      _model_max_length
    end

    # @return [String]
    def inspect
      limits = [("truncates at #{_truncation.first}" if _truncation), ("pads" if _padding)].compact
      "#<Candle::Tokenizer #{[_model_kind, "#{vocab_size} tokens", *limits, _source].join(", ")}>"
    end

    alias to_s inspect

    MAX_ID = (2**32) - 1
    PADDING_FIELDS = %i[direction pad_id pad_type_id pad_token length pad_to_multiple_of].freeze
    private_constant :MAX_ID, :PADDING_FIELDS

    private

    def inputs(text, pair)
      [TextInput.utf8(text), pair && TextInput.utf8(pair, "pair")]
    end

    def detailed(text, pair, add_special_tokens)
      fields = %i[ids tokens offsets word_ids type_ids special_tokens_mask attention_mask]
      fields.zip(_encode_detailed(*inputs(text, pair), add_special_tokens ? true : false)).to_h
    end

    def token_ids(ids)
      raise InvalidInputError, "ids must be an Array of Integers, not #{Arguments.shown(ids)}" unless Array === ids

      ids.each { |id| token_id(id) }
    end

    def token_id(id)
      return id if Integer === id && id.between?(0, MAX_ID)

      raise InvalidInputError, "a token id must be an Integer from 0 to #{MAX_ID}, not #{Arguments.shown(id)}"
    end

    def pad_pair(pad_id, pad_token)
      _, own_token, own_id = _special_tokens.find { |role, _, _| role == "pad_token" }
      return [pad_id || token_to_id(pad_token) || own_id || 0, pad_token] if pad_token
      return [pad_id, id_to_token(pad_id) || "[PAD]"] if pad_id

      [own_id || 0, own_token || "[PAD]"]
    end

    def left?(direction)
      case Arguments.label(direction, "direction")
      when "left" then true
      when "right" then false
      else raise ArgumentError, "direction must be left or right, not #{Arguments.shown(direction)}"
      end
    end
  end
end
