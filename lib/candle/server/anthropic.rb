# frozen_string_literal: true

require "securerandom"

module Candle
  class Server
    # Anthropic's dialect: its Messages.
    #
    # @api private
    class Anthropic < API
      # What the statuses are called that are not errors of the request itself.
      ERRORS = { 401 => "authentication_error", 403 => "permission_error", 404 => "not_found_error",
                 413 => "request_too_large", 429 => "rate_limit_error", 504 => "timeout_error" }.freeze
      # What sampling is where a request does not say it.
      USUAL = { temperature: 1.0 }.freeze
      # What the ends of a text are called; others are those of the model's turn.
      ENDS = { length: "max_tokens", stop_sequence: "stop_sequence" }.freeze
      private_constant :ERRORS, :USUAL, :ENDS

      # @param problem [Problem]
      # @return [Hash]
      def error(problem)
        usual = problem.status >= 500 ? "api_error" : "invalid_request_error"
        { type: "error", error: { type: ERRORS.fetch(problem.status, usual), message: problem.message } }
      end

      # @param request [Request]
      # @return [Array] an answer of Rack
      def create(request)
        entry = model(request)
        request.field("metadata", Hash, default: nil)
        raise invalid("max_tokens is missing", param: "max_tokens") if request.json["max_tokens"].nil?

        generation = generation(request, entry, sampling(request))
        head = { id: identifier("msg"), type: "message", role: "assistant", model: entry.name, content: [],
                 stop_reason: nil, stop_sequence: nil }
        return streamed(request, entry, generation, head) if request.flag("stream", false)

        json(compute(request) { write(request, entry, generation, AnthropicAnswer.new(head)) })
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: how many tokens a conversation has
      def count(request)
        entry = model(request)
        generation = generation(request, entry, {})
        json({ input_tokens: compute(request) { generation.prompt_tokens } })
      end

      private

      def model(request)
        models.fetch(request.field("model", String), *WRITERS)
      end

      def generation(request, entry, options)
        list = AnthropicInput.messages(request.field("messages", Array),
                                       request.field("system", String, Array, default: nil), images: entry.kind == :vlm)
        tools = AnthropicInput.tools(request.field("tools", Array, default: []))
        choice = AnthropicInput.tool_choice(tool_choice(request), tools)
        tools = [] if choice == :none
        schema = schema(request)
        raise invalid("pass tools or output_config.format, not both", param: "tools") if tools.any? && schema

        form = { tools: tools, tool_choice: choice, schema: schema, reasoning: reasoning(request),
                 single: single?(request) }
        answer_to(entry, ChatMessages.read(list, limits, entry), options: options, usual: USUAL, fields: request.json,
                                                                 **form)
      end

      def reasoning(request)
        thinking = request.field("thinking", Hash, default: nil)
        effort = request.field("output_config", Hash, default: {})["effort"]
        reasoning_of("thinking", reasoning: thinking && AnthropicInput.reasoning(thinking), reasoning_effort: effort)
      end

      def single?(request)
        tool_choice(request)["disable_parallel_tool_use"] == true
      end

      def schema(request)
        format = request.field("output_config", Hash, default: {})["format"] or return
        schema = format["schema"] if format.is_a?(Hash) && format["type"] == "json_schema"
        return schema if schema.is_a?(Hash)

        raise invalid("output_config.format must be of the type json_schema, with a schema", param: "output_config")
      end

      def tool_choice(request)
        request.field("tool_choice", Hash, default: { "type" => "auto" })
      end

      def sampling(request)
        { max_length: answer_length(request, "max_tokens"), stop_sequences: stops(request),
          temperature: request.field("temperature", Numeric, default: nil),
          top_p: request.field("top_p", Numeric, default: nil), top_k: request.field("top_k", Integer, default: nil) }
      end

      def stops(request)
        stops = request.field("stop_sequences", Array, default: [])
        return stops if stops.all?(String)

        raise invalid("stop_sequences must be an array of texts", param: "stop_sequences")
      end

      def streamed(request, entry, generation, head)
        failure = ->(problem) { Stream.event(error(problem), event: "error") }
        stream(request, "text/event-stream", failure: failure) do |emit|
          known = usage(Completion::Usage.new(prompt_tokens: generation.prompt_tokens, completion_tokens: 0))
          write(request, entry, generation, AnthropicAnswer.new(head.merge(usage: known), emit))
        end
      end

      # @return [Hash] the whole message
      def write(request, entry, generation, answer)
        result = generation.run { |kind, value| answer.add(kind, value) }
        answer.finish(result, ending: ending(entry, result, stops(request)), usage: usage(result.completion.usage))
      end

      def ending(entry, result, stops)
        return { stop_reason: "tool_use", stop_sequence: nil } if result.tool_calls.any?

        reason = ENDS.fetch(result.completion.finish_reason, "end_turn")
        matched = matched(entry, result.completion, stops) if reason == "stop_sequence"
        { stop_reason: reason, stop_sequence: matched }
      end

      # The text ends before the sequence, but its tokens contain it: the first one in them has ended the text.
      def matched(entry, completion, stops)
        return stops.first if stops.size == 1

        text = entry.model.tokenizer.decode(completion.token_ids)
        stops.min_by { |stop| text.index(stop) || Float::INFINITY }
      end

      # Tokens of the prefix cache are not among those of the input.
      def usage(usage)
        cached = usage.cached_tokens.to_i
        { input_tokens: usage.prompt_tokens - cached, cache_creation_input_tokens: 0,
          cache_read_input_tokens: cached, output_tokens: usage.completion_tokens }
      end

      def identifier(prefix)
        "#{prefix}_#{SecureRandom.hex(12)}"
      end
    end
  end
end
