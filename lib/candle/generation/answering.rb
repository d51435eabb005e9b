# frozen_string_literal: true

module Candle
  # How {LLM} turns prompts and conversations into answers, reasoning apart from text.
  #
  # @api private
  module Answering
    # What keeps the control tokens of users from being read as such.
    #
    # @api private
    # @param chat_template [String, nil]
    # @return [LiteralContent]
    def literal_content(chat_template)
      looked_up([:literal_content, chat_template]) do
        LiteralContent.new(tokenizer, marks: [*reasoning_format(chat_template)&.tokens, "<tool_call>", "</tool_call>"],
                                      templates: templates(chat_template))
      end
    end

    private

    # What of a call's options makes the prompt.
    PROMPT_OPTIONS = %i[tools chat_template add_special_tokens].freeze
    private_constant :PROMPT_OPTIONS

    # @return [AnswerRun]
    def begin_run(prompt_or_messages, reasoning: :auto, enable_thinking: nil, reasoning_effort: nil, **options)
      wish = Reasoning.of(reasoning, enable_thinking: enable_thinking, reasoning_effort: reasoning_effort)
      options = with_template(options)
      prompt, ids = encoded(prompt_or_messages, reasoning: wish, **options.slice(*PROMPT_OPTIONS))
      begin_ids(ids, prompt, reasoning: wish, **options.except(:tools, :add_special_tokens),
                             instruction_tokens: instruction_tokens(prompt, prompt_or_messages, wish, options))
    end

    # How many of a prompt's tokens others begin with too. Layers without states need not be told.
    def instruction_tokens(prompt, messages, reasoning, options)
      return 0 unless Array === messages && looked_up(:keeps_states) { _keeps_states }

      looked_up(:instructions) { Instructions.new(tokenizer) }.count(prompt, messages) do |others|
        chat_prompt(others, options[:tools], options[:chat_template], reasoning.variables)
      end
    end

    # A template is looked up by its text, which must be one.
    def with_template(options)
      return options if NilClass === options[:chat_template]

      options.merge(chat_template: Arguments.label(options[:chat_template], "chat_template"))
    end

    # @return [Array(String, Tokenizer::Ids)] the prompt and its ids
    def encoded(prompt_or_messages, tools: nil, chat_template: nil, add_special_tokens: nil, reasoning: Reasoning.of)
      if Array === prompt_or_messages
        checked = Messages.checked(Messages.some(prompt_or_messages)) do
          [*tokenizer.chat_templates.values, chat_template]
        end
        return literal_content(chat_template).encode(checked) do |messages|
          chat_prompt(messages, tools, chat_template, reasoning.variables)
        end
      end

      prompt = TextInput.utf8(prompt_or_messages, "prompt")
      [prompt, prompt_ids(prompt, add_special_tokens)]
    end

    def chat_prompt(messages, tools, chat_template, variables)
      messages = Reasoning.told(messages, templates(chat_template))
      tokenizer.render(messages, tools: tools && Tool.definitions(tools), chat_template: chat_template,
                                 variables: variables)
    end

    def begin_ids(ids, prompt, config:, reasoning: :auto, chat_template: nil, tool_formats: nil, offered: nil,
                  context_overflow: :error, adapter: active_adapter, speculative: nil, reset_cache: true,
                  instruction_tokens: 0, **overrides)
      config = configured(GenerationConfig.wrap(config), overrides)
      wish = Reasoning.of(reasoning)
      more = engine_settings(config, context_overflow, adapter, speculative, reset_cache)
      more[:instruction_tokens] = instruction_tokens
      format = config.debug_tokens ? nil : reasoning_format(chat_template)
      opened = !format.nil? && format.open_in?(prompt)
      ids = closed(ids, format) if opened && wish.off?
      ids += answering_ids(format, prompt, config, tool_formats)
      opened &&= !wish.off?
      plan = guarded(plan(config, wish, format, opened, more), config, tool_formats, offered)
      config_now = plan&.constrained ? config.with(constraint: nil) : config
      reader = reader(config, format, opened, tool_formats)
      AnswerRun.new(ids, config_now.settings.merge(more), config: config, prompt: prompt, plan: plan,
                                                          reader: reader) { |*given| _begin(*given) }
    end

    # What the engine is told beside the config, or by ids of the tokenizer.
    def engine_settings(config, overflow, adapter, speculative, reset_cache)
      { logit_bias: LogitBias.by_id(config.logit_bias, tokenizer), roll: roll?(overflow),
        adapter: adapter && Arguments.label(adapter, "adapter"), speculative: speculation(speculative),
        afresh: reset?(reset_cache) }
    end

    # Calls that the model makes by its own choice are valid too.
    def guarded(plan, config, formats, tools)
      guard = config.constraint ? nil : CallGuard.for(formats, tools, tokenizer)
      return plan unless guard

      (plan || AnswerRun::Plan.new).tap { |made| made.guard = guard }
    end

    # A model that writes in channels is constrained within that of its answer.
    def answering_ids(format, prompt, config, tool_formats)
      return [] if config.constraint.nil? || tool_formats || !(format&.answer && prompt.end_with?(format.turn))

      tokenizer.encode(format.answer, add_special_tokens: false)
    end

    def closed(ids, format)
      ids + tokenizer.encode(format.ending, add_special_tokens: false)
    end

    # A constraint is for the answer: a model whose prompt has opened reasoning thinks first.
    def plan(config, wish, format, opened, more)
      waits = config.constraint && opened
      return unless format && (waits || wish.budget)

      AnswerRun::Plan.new(budget: wish.budget, ending: format.ending,
                          ending_ids: tokenizer.encode(format.ending, add_special_tokens: false),
                          constrained: waits ? config.settings.merge(more) : nil)
    end

    # @return [AnswerReader, nil] nil where the answer is the text of the run
    def reader(config, format, opened, tool_formats)
      return if config.debug_tokens

      format = nil if config.constraint && !opened
      tokens = [*format&.tokens, *(ToolFormats.tokens(tool_formats) if tool_formats)]
      marks = tokens.empty? ? {} : looked_up([:marks, tokens]) { MarkedText.marks(tokenizer, tokens) }
      AnswerReader.new(tokenizer, format, marks, opened: opened) if format || marks.any?
    end

    # @return [ReasoningFormat, nil]
    def reasoning_format(chat_template)
      looked_up([:reasoning_format, chat_template]) do
        ReasoningFormat.find(templates(chat_template)) { |token| tokenizer.token_to_id(token) }
      end
    end

    def templates(chat_template)
      own = tokenizer.chat_templates
      chat_template ? [own.fetch(chat_template.to_s, chat_template.to_s)] : own.values
    end

    # @return [Completion]
    def run(begun, &block)
      block&.call(begun.prompt) if begun.config.include_prompt
      if block || begun.reader || begun.several?
        follow_run(begun, block)
      else
        begun.run.finish
      end
      completion(begun)
    ensure
      begun.release
    end

    def follow_run(begun, block)
      wanted = block ? block.parameters.count { |kind, _| %i[req opt].include?(kind) } : 0
      begun.follow do |kind, text, (first, last)|
        text = debug_text(begun.run.outcome[:token_ids][first...last]) if begun.config.debug_tokens
        tokens = named_logprobs(begun.run.likelihoods(first, last)) if begun.config.logprobs && wanted > 1
        deliver(block, wanted, kind, text, tokens) if block
      end
    end

    # A block of one parameter gets the text, one of two the kind too, or the tokens where their log probabilities are
    # wanted, and one of three all of it.
    def deliver(block, wanted, kind, text, tokens)
      return block.call(text, kind, tokens) if wanted > 2
      return block.call(text, kind) if wanted == 2 && !tokens
      return if kind != :text

      tokens ? block.call(text, tokens) : block.call(text)
    end

    def completion(begun)
      outcome = begun.outcome
      config = begun.config
      text = begun.reader ? begun.reader.text : outcome[:text]
      text = debug_text(outcome[:token_ids]) if config.debug_tokens
      text = begun.prompt + text if config.include_prompt
      told_of_endless(begun.reader, outcome)
      logprobs = config.logprobs && named_logprobs(outcome[:logprobs])
      Instrumentation.count(self, Completion.new(outcome, text: text, logprobs: logprobs,
                                                          reasoning: begun.reader&.reasoning,
                                                          reasoning_tokens: begun.reader&.reasoning_tokens.to_i))
    end

    def told_of_endless(reader, outcome)
      return unless reader&.reasoning? && outcome[:finish_reason] == :length

      Candle.logger.warn do
        "the model was still reasoning after #{outcome[:token_ids].size} tokens, and its answer is empty: raise " \
          "max_length:, or limit reasoning with reasoning: { budget: tokens }"
      end
    end

    def debug_text(ids)
      ids.map { |id| "[#{id}:#{tokenizer.decode([id], skip_special_tokens: false)}]" }.join
    end

    def reset?(reset_cache)
      return reset_cache == :all if [true, false, nil, :all].include?(reset_cache)

      raise ArgumentError, "reset_cache must be true, false or :all, not #{Arguments.shown(reset_cache)}"
    end

    def roll?(overflow)
      case overflow&.to_sym
      when :roll then true
      when :error, nil then false
      else raise ArgumentError, "context_overflow must be :error or :roll, not #{Arguments.shown(overflow)}"
      end
    end
  end
end
