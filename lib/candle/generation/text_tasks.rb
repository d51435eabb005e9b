# frozen_string_literal: true

module Candle
  # Summaries and translations, as {Seq2Seq} writes them: the checkpoint's own words for a task (T5's prefixes), its
  # settings for it, and its languages.
  module TextTasks
    # Settings of a checkpoint's task that transformers counts with the token every text starts with.
    LENGTHS = %w[max_length min_length].freeze
    # How many new tokens a text has at most where neither the call nor the checkpoint says it.
    MAX_LENGTH = 512
    # What a text may be written for.
    TASKS = %i[summarize translate].freeze
    # Those that are taken over from `task_specific_params`.
    SETTINGS = %w[num_beams length_penalty early_stopping no_repeat_ngram_size max_length min_length
                  repetition_penalty].freeze
    private_constant :LENGTHS, :MAX_LENGTH, :SETTINGS, :TASKS

    # @example
    #   model = Candle::Seq2Seq.from_pretrained("spec/fixtures/tiny/seq2seq/t5")
    #   model.summarize("the quick brown fox jumps over the lazy dog", max_length: 6).class # => String
    #
    # @param input [String, Array<String>]
    # @param max_length [Integer, nil] in new tokens; nil is what the checkpoint says
    # @param min_length [Integer, nil] in new tokens
    # @param options [Hash] as {Seq2Seq#generate} takes them; `num_beams:` and the others are the checkpoint's where
    #   they are not given
    # @return [String, Array<String>]
    def summarize(input, max_length: nil, min_length: nil, **options)
      lengths = { max_length: max_length, min_length: min_length }.compact
      texts_of(input, task: :summarize, **options, **lengths)
    end

    # Translates, where the model knows languages: M2M100 and NLLB by the codes of {Seq2Seq#languages} ("en",
    # "fra_Latn"), T5 by the pairs it was trained on ("en", "de"), Marian's models of several languages by codes such as
    # "fra". Models of one pair of languages need neither, and can't tell whether they are called by the right ones.
    #
    # @example
    #   model = Candle::Seq2Seq.from_pretrained("spec/fixtures/tiny/seq2seq/nllb")
    #   model.languages # => ["deu_Latn", "eng_Latn", "fra_Latn"]
    #   model.translate("hello world", from: "eng_Latn", to: "fra_Latn", max_length: 4).class # => String
    #
    # @param input [String, Array<String>]
    # @param from [String, Symbol, nil] the language of the text; nil is the one the checkpoint starts from
    # @param to [String, Symbol, nil] the language to write
    # @param options [Hash] as {Seq2Seq#generate} takes them; `num_beams:` and the others are the checkpoint's where
    #   they are not given
    # @return [String, Array<String>]
    # @raise [InvalidInputError] for a language that the model does not know, or when it must be told one
    def translate(input, from: nil, to: nil, **options)
      texts_of(input, task: :translate, from: from, to: to, **options)
    end

    # @example
    #   model = Candle::Seq2Seq.from_pretrained("spec/fixtures/tiny/seq2seq/t5")
    #   model.usual_length(task: :summarize) # => 11
    #
    # @param task [Symbol, nil] `:summarize`, `:translate`, or nil for none
    # @param from [String, Symbol, nil] as {#translate} takes it
    # @param to [String, Symbol, nil]
    # @return [Integer] how many new tokens a text has at most where a call does not say it
    def usual_length(task: nil, from: nil, to: nil)
      of_task = task && task_settings(plan(task, from, to).first)[:max_length]
      of_task || defaults[:max_length].nonzero? || MAX_LENGTH
    end

    # @example
    #   model = Candle::Seq2Seq.from_pretrained("spec/fixtures/tiny/seq2seq/t5")
    #   model.count_tokens("the dog", task: :summarize) > model.count_tokens("the dog") # => true
    #
    # @param text [String]
    # @param task [Symbol, nil] `:summarize`, `:translate`, or nil for none
    # @param from [String, Symbol, nil] as {#translate} takes it
    # @param to [String, Symbol, nil]
    # @return [Integer] how many tokens of a text are read for a task
    def count_tokens(text, task: nil, from: nil, to: nil)
      prefix = task && plan(task, from, to).first["prefix"]
      [tokenizer.encode("#{prefix}#{text}").size, max_length].compact.min
    end

    private

    def texts_of(input, **options)
      texts, single = Arguments.texts(input)
      completions = completions_by_task(texts, **options)
      single ? completions.first.text : completions.map(&:text)
    end

    # Texts behind the task's prefix, by its settings where the call has none.
    def completions_by_task(texts, task:, config: nil, from: nil, to: nil, **options, &block)
      found, languages = plan(task, from, to)
      texts = texts.map { |text| "#{found["prefix"]}#{text}" } if found["prefix"]
      options = GenerationConfig.canonical(options)
      given = { num_beams: defaults[:num_beams], **task_settings(found), **options }
      given = given.except(*GenerationConfig::DEFAULTS.keys - options.keys) if config
      completions_of(texts, config, given, **languages, &block)
    end

    # @return [Array(Hash, Hash)] the checkpoint's prefix and settings, and the languages that are tokens
    def plan(task, from, to)
      from, to = [from, to].map { |code| code && TextInput.utf8(code.to_s, "language") }
      return [translation(from, to), languages.empty? ? {} : { from: from, to: to }] if
        Arguments.choice(task, "task", TASKS) == :translate

      refuse_languages(from, to)
      [tasks["summarization"] || {}, {}]
    end

    def refuse_languages(*languages)
      raise ArgumentError, "from: and to: are for task: :translate" if languages.any?
    end

    def translation(from, to)
      return pair(from, to) if languages.empty? && !pairs.empty?
      return marian_task(to) if languages.empty?
      raise InvalidInputError, "to: needs a language to translate to, such as #{languages.first.inspect}" if to.nil?

      {}
    end

    # Marian: the target language of models with several is a token before the text.
    def marian_task(to)
      unless model_info[:family] == "marian"
        raise InvalidInputError,
              "#{model_id} has no languages to choose from: its configuration has no translation task"
      end

      known = marian_languages
      return {} if known.empty? || to.nil?

      raise InvalidInputError, unknown_language(to, known) unless known.include?(to)

      { "prefix" => ">>#{to}<< " }
    end

    def marian_languages
      @marian_languages ||= tokenizer.get_vocab.keys.filter_map { |token| token[/\A>>(.+)<<\z/, 1] }.sort.freeze
    end

    def unknown_language(code, known)
      "unknown language #{code.inspect}; this model has #{known.first(12).join(", ")}"
    end

    # T5's pairs of languages, with what the configuration says of each.
    def pairs
      @pairs ||= tasks.filter_map { |name, task| [*name.match(/\Atranslation_(\w+)_to_(\w+)\z/)&.captures, task] }
                      .select { |entry| entry.size == 3 }
    end

    def pair(from, to)
      found = pairs.select { |source, target, task| speaks?(source, target, task["prefix"].to_s, from, to) }
      return found.first.last if found.size == 1

      known = pairs.map { |source, target, _| "#{source} to #{target}" }.join(", ")
      raise InvalidInputError, "from: #{from.inspect} and to: #{to.inspect} do not name one of the pairs that this " \
                               "model was trained on: #{known}"
    end

    # By code ("de") or by the name that the prefix has ("German").
    def speaks?(source, target, prefix, from, to)
      names = prefix.downcase.match(/translate (\w+) to (\w+)/)&.captures || []
      [[from, source, names.first], [to, target, names.last]].all? do |wanted, code, name|
        wanted.nil? || [code, name].include?(wanted.downcase)
      end
    end

    def task_settings(task)
      task.slice(*SETTINGS).to_h do |name, value|
        [name.to_sym, LENGTHS.include?(name) && value.is_a?(Integer) ? [value - 1, 0].max : value]
      end
    end
  end
end
