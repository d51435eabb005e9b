# frozen_string_literal: true

module Candle
  # Conversations in which the model may call tools, as {LLM} has them.
  module ToolUse
    PROBE = { "type" => "function",
              "function" => { "name" => "probe_tool", "description" => "probe",
                              "parameters" => { "type" => "object", "properties" => {} } } }.freeze
    private_constant :PROBE

    # Answers a conversation with tools at hand. Their definitions go through the model's own chat template where that
    # knows tools, and into the system message otherwise.
    #
    # @param messages [Array<Hash>] `{role:, content:}` each; answers with `tool_calls:` and messages of role `tool` too
    # @param tools [Array<Tool, Hash>] tools, or definitions in the form of OpenAI's functions
    # @param execute [Boolean] whether to call the tools; what they return or raise is in `tool_results`
    # @param observer [#call, nil] called with `(:tool_call, call)` before and `(:tool_result, result)` after each
    # @param tool_choice [Symbol, String] `:auto` leaves it to the model, `:required` makes it call one (by a
    #   constraint, so that the call is always valid), a name makes it call that one, `:none` hides the tools
    # @param options [Hash] as {LLM#chat} takes them
    # @yieldparam piece [String] the answer as it comes
    # @yieldparam kind [Symbol] `:reasoning` or `:text`, for a block of two parameters
    # @return [ToolCallResult]
    # @raise [ArgumentError] for what isn't a tool, and when tools without a block are to be called
    # @raise [StructuredOutputError] when `max_length` cuts a call off that `tool_choice` demands
    def chat_with_tools(messages, tools:, execute: false, tool_choice: :auto, observer: nil, **options, &block)
      offered = choose(Tool.all(tools), tool_choice)
      callable!(offered) if execute
      options = with_template(options) if respond_to?(:tokenizer)
      completion = complete_with_tools(messages, tools: tools, tool_choice: tool_choice, **options, &block)
      found = offered.empty? ? nil : calls_in(completion.text, offered, options[:chat_template])
      calls = found ? found.tool_calls : []
      ToolCallResult.new(tool_calls: calls, tool_results: execute ? outcomes(calls, offered, observer) : [],
                         text_response: calls.empty? ? completion.text : found.text_response,
                         raw_response: completion.text, completion: completion)
    end

    # The forms in which the model writes calls of tools, its own first. They come from its chat template and
    # vocabulary; a model whose template knows no tools is told a form, and may write any.
    #
    # @api private
    # @param chat_template [String, nil] another template than the checkpoint's own
    # @return [Array<ToolFormat>]
    def tool_formats(chat_template = nil)
      @tool_formats ||= {}
      @tool_formats[chat_template] ||=
        if knows_tools?(chat_template)
          ToolFormats.find(templates(chat_template)) { |token| tokenizer.token_to_id(token) }
        else
          [ToolFormats::HERMES, *ToolFormats::ALL].uniq
        end
    end

    # The run that {#chat_with_tools} reads its calls from, with all that is known of it.
    #
    # @api private
    # @return [Completion]
    def complete_with_tools(messages, tools:, tool_choice: :auto, **options, &block)
      offered = choose(Tool.all(tools), tool_choice)
      options = with_template(options) if respond_to?(:tokenizer)
      options[:tool_formats] = tool_formats(options[:chat_template]) if offered.any? && respond_to?(:tokenizer)
      return demand(messages, offered, options, &block) if demands_call?(tool_choice)

      tell(messages, offered, options, &block)
    end

    private

    def choose(tools, choice)
      case choice
      when :auto, "auto", :required, "required", nil then tools
      when :none, "none" then []
      else
        [tools.find { |tool| tool.name == choice.to_s } ||
          raise(ArgumentError,
                "tool_choice must be :auto, :required, :none or one of #{names(tools)}, not " \
                "#{Arguments.shown(choice)}")]
      end
    end

    def demands_call?(choice)
      ![:auto, "auto", :none, "none", nil].include?(choice)
    end

    def tell(messages, tools, options, &block)
      told, shown = with_definitions(messages, tools, options[:chat_template])
      options = options.merge(offered: tools) if options[:tool_formats]
      answer(told, **shown, **options, &block)
    end

    # @return [Array(Array<Hash>, Hash)] the conversation, and the tools where the template writes them itself
    def with_definitions(messages, tools, template)
      return [ToolMessages.native(messages), tools.empty? ? {} : { tools: tools }] if knows_tools?(template)

      [ToolMessages.plain(messages, tools, system: takes_system?(template)), {}]
    end

    def demand(messages, tools, options, &block)
      raise ArgumentError, "tool_choice demands a call, but there are no tools" if tools.empty?

      constraint = call_constraint(tools, options[:tool_formats])
      told, shown = with_definitions(messages, tools, options[:chat_template])
      follow(told, constraint, options.delete(:config) || GenerationConfig.balanced, options.merge(shown), &block)
    end

    # A call in the model's own form, where that has a grammar; one as JSON alone otherwise.
    def call_constraint(tools, formats)
      own = formats&.first unless formats == ToolFormats::ALL || formats&.include?(ToolFormats::FENCED)
      grammar = own&.grammar(tools)
      return StructuredConstraint.from_schema(ToolFormats::Grammar.new(tools).schema) unless grammar

      StructuredConstraint.from_grammar(ToolFormats::Grammar.spell(grammar, tokenizer))
    end

    def calls_in(text, tools, template)
      return ToolCallParser.parse(text) unless respond_to?(:tokenizer)

      ToolCallParser.new(formats: tool_formats(template)).parse(text, schemas: tools)
    end

    def callable!(tools)
      tool = tools.find { |candidate| candidate.respond_to?(:callable?) && !candidate.callable? } or return
      raise ArgumentError, "the tool #{tool.name} has no block to call: give Tool.new one, or leave execute: out"
    end

    def outcomes(calls, tools, observer)
      calls.map do |call|
        observer&.call(:tool_call, call)
        outcome(call, tools).tap { |result| observer&.call(:tool_result, result) }
      end
    end

    def outcome(call, tools)
      tool = tools.find { |candidate| candidate.name == call.name }
      raise InvalidInputError, "unknown tool #{call.name}; there are #{names(tools)}" unless tool

      { tool_call: call, result: tool.execute(call.arguments), error: nil }
    rescue StandardError => e
      { tool_call: call, result: nil, error: e.message }
    end

    def names(tools)
      tools.map(&:name).join(", ")
    end

    def knows_tools?(template)
      renders?(template, [{ role: "user", content: "probe" }], [PROBE], "probe_tool")
    end

    def takes_system?(template)
      renders?(template, [{ role: "system", content: "probe_system" }, { role: "user", content: "probe" }], nil,
               "probe_system")
    end

    # What a template does with a probe, found out once for each template.
    def renders?(template, messages, tools, text)
      @rendered ||= {}
      key = [template, text]
      return @rendered[key] if @rendered.key?(key)

      @rendered[key] = begin
        apply_chat_template(messages, tools: tools, **{ chat_template: template }.compact).include?(text)
      rescue Error
        false
      end
    end
  end
end
