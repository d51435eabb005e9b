# frozen_string_literal: true

require "json"

Candle::Native.complete(:Seq2Seq)

module Candle
  # A model that reads one text and writes another: T5, Flan-T5, mT5, BART, Marian (opus-mt), M2M100, NLLB, Pegasus.
  #
  # @example
  #   model = Candle::Seq2Seq.from_pretrained("spec/fixtures/tiny/seq2seq/t5")
  #   model.generate("the dog", max_length: 4).class # => String
  #   model.generate(["the dog", "hello world"], num_beams: 2, max_length: 4).size # => 2
  class Seq2Seq
    include Model
    include NamedTokens
    include Statistics
    include StructuredOutput
    include TextTasks

    # Texts under way.
    #
    # @api private
    class Run
      # @!method step
      #   Writes one more token of every text.
      #   @return [String, nil] what became certain of the first one; nil once all are over

      # @!method finish
      #   Writes all texts to their end.
      #   @return [nil]

      # @!method outcomes
      #   @return [Array<Hash>] what has become of each text: `text token_ids logprobs finish_reason` and figures

      # @!method release
      #   Ends the run.
      #   @return [void]

      # Only a model begins a run.
      private_class_method :new
    end

    # What a call may say beside the fields of {GenerationConfig}.
    OPTIONS = %i[num_beams length_penalty early_stopping no_repeat_ngram_size min_length].freeze
    # The words for a length that is a number of new tokens.
    MIN_LENGTHS = %i[min_length min_new_tokens].freeze
    # So many texts are written at once.
    TEXTS_AT_ONCE = 32
    private_constant :OPTIONS, :MIN_LENGTHS, :TEXTS_AT_ONCE

    class << self
      # @param source [String, Pathname] a Hugging Face id, a directory, or a `.gguf` file
      # @param positional_device [Device, String, nil] the same as `device:`
      # @param device [Device, String, Symbol, nil] nil is the best one
      # @param dtype [Symbol, nil] `:f32`, `:f16`, `:bf16`; nil is f32 on the CPU and the checkpoint's on a GPU
      # @param tokenizer [Tokenizer, String, nil] instead of the model's own
      # @param max_length [Integer, nil] a lower limit than the model's for the texts that are read
      # @param gguf_file [String, nil] which file of a repository with several
      # @param revision [String, nil] a branch, tag or commit of the hub
      # @param token [String, nil] for private and gated models, before `HF_TOKEN`
      # @param cache_dir [String, Pathname, nil] where downloaded models are kept, before `HF_HUB_CACHE`
      # @param verify [Boolean, nil] whether to compare the device with the CPU first; nil does so on GPUs
      # @return [Seq2Seq]
      # @raise [ModelNotFoundError, DownloadError, OfflineError] when it can't be found or fetched
      # @raise [CorruptModelError, UnsupportedModelError] when it can't be read, with the reason
      def from_pretrained(source, positional_device = nil, device: nil, dtype: nil, tokenizer: nil, max_length: nil,
                          gguf_file: nil, revision: nil, verify: nil, token: nil, cache_dir: nil, **unknown)
        refuse(unknown)
        load_model(source, device: device || positional_device, dtype: dtype, tokenizer: tokenizer,
                           max_length: Arguments.count(max_length, "max_length"), gguf_file: gguf_file,
                           revision: revision, verify: verify, token: token, cache_dir: cache_dir)
      end
    end

    # Writes what becomes of a text, or of several at once. What the checkpoint says of generating (the tokens that
    # begin and end a text, lengths, words that do not come) counts unless the call says otherwise.
    #
    # @param input [String, Array<String>] longer texts than the model can read are cut
    # @param config [GenerationConfig, Hash, nil] nil takes the likeliest tokens, as many as the checkpoint says
    # @param num_beams [Integer] how many continuations are followed at once
    # @param overrides [Hash] fields of {GenerationConfig}; `min_length:` and `max_length:` in new tokens;
    #   `length_penalty:`, `early_stopping:` (true, false or `:never`) of beams; `no_repeat_ngram_size:`; one of
    #   `schema:`, `pattern:`, `grammar:` for what a single text must match
    # @return [String, Array<String>]
    # @raise [ArgumentError] for an unknown option or an impossible value
    def generate(input, config: nil, num_beams: 1, **overrides)
      texts, single = Arguments.texts(input)
      completions = completions_of(texts, config, { num_beams: num_beams, **overrides })
      single ? completions.first.text : completions.map(&:text)
    end

    # Yields the text as it comes; what is yielded adds up to what is returned. With several beams nothing is certain
    # before the end, and the whole text comes at once.
    #
    # @param text [String]
    # @param config [GenerationConfig, Hash, nil]
    # @param overrides [Hash] as {#generate} takes them
    # @yieldparam piece [String]
    # @return [String, Enumerator] the whole text; without a block an Enumerator of pieces
    def generate_stream(text, config: nil, **overrides, &block)
      return enum_for(:generate_stream, text, config: config, **overrides) unless block

      complete(text, config: config, **overrides, &block).text
    end

    # The same as {#generate}, with everything that is known of the run.
    #
    # @param input [String, Array<String>]
    # @param config [GenerationConfig, Hash, nil]
    # @param task [Symbol, nil] `:summarize` or `:translate` for what {#summarize} and {#translate} write
    # @param from [String, Symbol, nil] the languages of a translation, as {#translate} takes them
    # @param to [String, Symbol, nil]
    # @param overrides [Hash] as {#generate} takes them
    # @yieldparam piece [String] a single text as it comes
    # @return [Completion, Array<Completion>] one for a String, one per text for an Array
    # @raise [ArgumentError] for a block with several texts
    def complete(input, config: nil, task: nil, from: nil, to: nil, **overrides, &block)
      texts, single = Arguments.texts(input)
      raise ArgumentError, "a block streams a single text: pass one text, or no block" if block && !single

      found = if task
                completions_by_task(texts, task: task, config: config, from: from, to: to, **overrides, &block)
              else
                refuse_languages(from, to)
                completions_of(texts, config, overrides, &block)
              end
      single ? found.first : found
    end

    # @return [Array<String>] the codes of the languages that the model has tokens for, as `translate` takes them; empty
    #   for models without language tokens
    def languages
      looked_up(:languages) { _languages.freeze }
    end

    # @return [Integer] how many tokens of a text are read
    def max_length
      model_info.fetch(:max_length)
    end

    private

    def smoke_test
      generate("a", max_length: 1)
    end

    # What the checkpoint says of generating, in new tokens.
    def defaults
      looked_up(:defaults) { _defaults.freeze }
    end

    # `task_specific_params` of the configuration.
    def tasks
      looked_up(:tasks) { JSON.parse(_tasks) }
    end

    def completions_of(texts, config, options, from: nil, to: nil, &block)
      own, config = configured_for(config, options)
      bias = LogitBias.by_id(config.logit_bias, tokenizer)
      settings = config.settings.merge(own, from: from, to: to, logit_bias: bias).compact
      # Each text follows a constraint of its own.
      texts.each_slice(config.constraint ? 1 : TEXTS_AT_ONCE).flat_map do |slice|
        written(slice, settings, config, &block)
      end
    end

    # @see StructuredOutput#generate_structured
    def many?(texts)
      texts.is_a?(Array)
    end

    def generate_all(texts, progress, finish:, **options)
      report = Progress.for(progress)
      texts.each_with_index.map do |text, index|
        finish.call(complete(text, **options)).tap { report&.call(index + 1, texts.size) }
      end
    end

    def written(texts, settings, config, &block)
      run = _begin(texts, settings)
      block ? stream(run, &block) : run.finish
      run.outcomes.map do |outcome|
        logprobs = config.logprobs && named_logprobs(outcome[:logprobs])
        Instrumentation.count(self, Completion.new(outcome, text: outcome[:text], logprobs: logprobs))
      end
    ensure
      run&.release
    end

    def stream(run)
      while (piece = run.step)
        yield piece unless piece.empty?
      end
    end

    # The options of a call that are not fields of a GenerationConfig, and the config with those that are.
    def configured_for(config, options)
      options = options.transform_keys { |name| MIN_LENGTHS.include?(name) ? :min_length : name }
      own = own_options(options.slice(*OPTIONS).compact)
      config = configured(NilClass === config ? usual_config : GenerationConfig.wrap(config), options.except(*OPTIONS))
      if config.include_prompt || config.debug_tokens
        raise ArgumentError, "include_prompt and debug_tokens are for language models, not for #{self.class}"
      end

      [own, config]
    end

    def usual_config
      GenerationConfig.deterministic(max_length: usual_length, repetition_penalty: defaults[:repetition_penalty])
    end

    def own_options(given)
      counts = { num_beams: 1, no_repeat_ngram_size: 0, min_length: 0 }
      counts.each { |name, least| check_count(name, given[name], least) if given.key?(name) }
      if given.key?(:length_penalty) && !(Numeric === given[:length_penalty] && given[:length_penalty].real?)
        raise ArgumentError, "length_penalty must be a number, not #{Arguments.shown(given[:length_penalty])}"
      end

      early = given.key?(:early_stopping) ? { early_stopping: early_stopping(given[:early_stopping]) } : {}
      penalty = given.key?(:length_penalty) ? { length_penalty: given[:length_penalty].to_f } : {}
      given.slice(*counts.keys).merge(early, penalty)
    end

    def check_count(name, value, least)
      return if Integer === value && value >= least

      raise ArgumentError, "#{name} must be an Integer of at least #{least}, not #{Arguments.shown(value)}"
    end

    def early_stopping(value)
      case value
      when true then "always"
      when false then "heuristic"
      when :never, "never" then "never"
      else raise ArgumentError, "early_stopping must be true, false or :never, not #{value.inspect}"
      end
    end
  end
end
