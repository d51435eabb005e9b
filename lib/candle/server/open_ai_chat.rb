# frozen_string_literal: true

module Candle
  class Server
    # OpenAI's `/v1/chat/completions`.
    #
    # @api private
    class OpenAIChat < OpenAI
      # @param request [Request]
      # @return [Array] an answer of Rack
      def create(request)
        entry = models.fetch(request.field("model", String, default: nil), *WRITERS)
        generation = generation(request, entry)
        head = { id: identifier("chatcmpl"), created: Time.now.to_i, model: entry.name }
        count = answers(request)
        return streamed(request, entry, generation, head, count) if request.flag("stream", false)

        results = compute(request) { Array.new(count) { |index| generation.run(seed_offset: index) } }
        choices = results.each_with_index.map { |result, index| choice(entry, result, index) }
        json(head.merge(object: "chat.completion", choices: choices, usage: usage(results)))
      end

      private

      def generation(request, entry)
        tools = tools(request)
        schema = schema(request)
        raise invalid("pass tools or response_format, not both", param: "tools") if tools.any? && schema

        answer_to(entry, messages(request, entry), options: sampling(request).merge(logprobs: logprobs(request)),
                                                   usual: USUAL, fields: request.json, tools: tools,
                                                   tool_choice: tool_choice(request), schema: schema,
                                                   reasoning: reasoning(request),
                                                   single: !request.flag("parallel_tool_calls", true))
      end

      # Variables of the template may be told by their own names too.
      def reasoning(request)
        more = request.field("chat_template_kwargs", Hash, default: {})
        switch = %w[enable_thinking thinking].filter_map { |name| [more[name]] if more.key?(name) }.flatten.first
        unless [true, false, nil].include?(switch)
          raise invalid("chat_template_kwargs.enable_thinking must be true or false", param: "chat_template_kwargs")
        end

        effort = request.field("reasoning_effort", String, default: nil) || more["reasoning_effort"]
        reasoning_of("reasoning_effort", reasoning_effort: effort, enable_thinking: switch)
      end

      def messages(request, entry)
        list = request.field("messages", Array)
        raise invalid("messages must not be empty", param: "messages") if list.empty?

        ChatMessages.read(list, limits, entry)
      end

      def tools(request)
        return [] if request.json["tool_choice"] == "none"

        request.field("tools", Array, default: []).each_with_index.map do |tool, index|
          ChatMessages.tool(tool, "tools[#{index}]")
        end
      end

      def tool_choice(request)
        case (choice = request.json["tool_choice"])
        when nil, "auto" then :auto
        when "none", "required" then choice.to_sym
        when Hash then function_name(choice["function"])
        else raise invalid("tool_choice must be none, auto, required or a function", param: "tool_choice")
        end
      end

      def function_name(function)
        name = function["name"] if function.is_a?(Hash)
        return name if name.is_a?(String)

        raise invalid("tool_choice names no function", param: "tool_choice")
      end

      def schema(request)
        format = request.field("response_format", Hash, default: { "type" => "text" })
        schema_of(format, "response_format") { format["json_schema"] }
      end

      # @yieldreturn [Object] what holds the schema
      def schema_of(format, name)
        case format.is_a?(Hash) ? format["type"] : format
        when "text" then nil
        when "json_object" then { "type" => "object" }
        when "json_schema"
          schema = yield.then { |holder| holder["schema"] if holder.is_a?(Hash) }
          schema.is_a?(Hash) ? schema : raise(invalid("#{name} has no JSON schema", param: name))
        else raise invalid("#{name} must be text, json_object or json_schema", param: name)
        end
      end

      def logprobs(request)
        return unless request.flag("logprobs", false)

        count = request.field("top_logprobs", Integer, default: 0)
        return count if count.between?(0, 20)

        raise invalid("top_logprobs must be from 0 to 20", param: "top_logprobs")
      end

      def choice(entry, result, index)
        message = { role: "assistant", content: result.text }
        message[:reasoning_content] = result.reasoning if result.reasoning
        message[:tool_calls] = result.tool_calls.map { |call| tool_call(call) } if result.tool_calls.any?
        { index: index, message: message, logprobs: logprobs_of(entry, result), finish_reason: finish_reason(result) }
      end

      def tool_call(call)
        { id: identifier("call"), type: "function",
          function: { name: call.name, arguments: JSON.generate(call.arguments) } }
      end

      def streamed(request, entry, generation, head, count)
        head = head.merge(object: "chat.completion.chunk")
        with_usage = usage_wanted?(request)
        failure = ->(problem) { Stream.event(error(problem)) }
        stream(request, "text/event-stream", failure: failure) do |emit|
          chunk = ->(*choices) { emit.call(Stream.event(head.merge(choices: choices))) }
          results = Array.new(count) { |index| stream_answer(entry, generation, index, chunk) }
          emit.call(Stream.event(head.merge(choices: [], usage: usage(results)))) if with_usage
          emit.call("data: [DONE]\n\n")
        end
      end

      # The role comes with the first token, so that an error before it still has a status of its own.
      def stream_answer(entry, generation, index, chunk)
        role = { role: "assistant" }
        delta = lambda do |value, **more|
          chunk.call({ index: index, delta: role.merge(value), finish_reason: nil }.merge(more))
          role = {}
        end
        told = 0
        result = generation.run(seed_offset: index) do |kind, value, tokens|
          told += tokens.size
          delta.call(delta_of(kind, value), **{ logprobs: likelihoods(entry, tokens) }.compact)
        end
        finish_stream(entry, result, delta, told)
        result
      end

      # A call comes with its name first, then its arguments as they are written.
      def delta_of(kind, value)
        case kind
        when :text then { content: value }
        when :reasoning then { reasoning_content: value }
        when :tool_call
          { tool_calls: [{ index: value[:index], id: identifier("call"), type: "function",
                           function: { name: value[:name], arguments: "" } }] }
        else { tool_calls: [{ index: value[:index], function: { arguments: value[:json] } }] }
        end
      end

      # Tokens that made no text, such as the last one, come after it.
      def finish_stream(entry, result, delta, told)
        rest = likelihoods(entry, result.completion.logprobs.to_a.drop(told))
        delta.call({ content: "" }, logprobs: rest) if rest
        delta.call({}, finish_reason: finish_reason(result))
      end

      def logprobs_of(entry, result)
        list = result.completion.logprobs
        list && { content: described_tokens(entry, list) }
      end

      # @return [Hash, nil] nil for none
      def likelihoods(entry, tokens)
        tokens.empty? ? nil : { content: described_tokens(entry, tokens) }
      end

      def described_tokens(entry, tokens)
        tokenizer = entry.model.tokenizer
        tokens.map do |token|
          likelihood(tokenizer, token).merge(top_logprobs: token[:top].map { |other| likelihood(tokenizer, other) })
        end
      end

      def likelihood(tokenizer, token)
        text = token_text(tokenizer, token[:id], token[:token])
        { token: text, logprob: token[:logprob], bytes: text.include?("\uFFFD") ? nil : text.bytes }
      end
    end
  end
end
