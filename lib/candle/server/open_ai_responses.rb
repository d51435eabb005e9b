# frozen_string_literal: true

module Candle
  class Server
    # OpenAI's `/v1/responses`. Nothing is kept: a conversation is sent whole each time.
    #
    # @api private
    class OpenAIResponses < OpenAIChat
      # What asks for log probabilities.
      LOGPROBS = "message.output_text.logprobs"
      private_constant :LOGPROBS

      # @param request [Request]
      # @return [Array] an answer of Rack
      def create(request)
        if request.json["previous_response_id"]
          raise invalid("this server keeps no responses: send the whole conversation as input",
                        param: "previous_response_id")
        end

        entry = models.fetch(request.field("model", String, default: nil), *WRITERS)
        generation = generation(request, entry)
        head = head(request, entry)
        return streamed(request, entry, generation, head) if request.flag("stream", false)

        result = compute(request) { generation.run }
        json(response(head, entry, result, identifier("msg")))
      end

      private

      def identifier(prefix)
        "#{prefix}_#{SecureRandom.hex(16)}"
      end

      def messages(request, entry)
        input = request.field("input", String, Array)
        raise invalid("input must not be empty", param: "input") if input.empty?

        instructions = request.field("instructions", String, default: nil)
        ChatMessages.read(ResponsesInput.messages(input, instructions), limits, entry)
      end

      def tools(request)
        return [] if request.json["tool_choice"] == "none"

        request.field("tools", Array, default: []).each_with_index.map do |tool, index|
          unless tool.is_a?(Hash) && tool["type"] == "function"
            raise invalid("tools[#{index}] must be a function: this server has no tools of its own", param: "tools")
          end

          ChatMessages.tool({ "function" => tool }, "tools[#{index}]")
        end
      end

      def tool_choice(request)
        choice = request.json["tool_choice"]
        return super unless choice.is_a?(Hash)

        function_name(choice)
      end

      def reasoning(request)
        wish = request.field("reasoning", Hash, default: {})
        reasoning_of("reasoning", reasoning_effort: wish["effort"])
      end

      def schema(request)
        format = request.field("text", Hash, default: {})["format"] || { "type" => "text" }
        schema_of(format, "text.format") { format }
      end

      def logprobs(request)
        return unless request.field("include", Array, default: []).include?(LOGPROBS)

        count = request.field("top_logprobs", Integer, default: 0)
        return count if count.between?(0, 20)

        raise invalid("top_logprobs must be from 0 to 20", param: "top_logprobs")
      end

      def max_tokens(request)
        answer_length(request, "max_output_tokens")
      end

      # What of a response does not depend on the answer: mostly what was asked for.
      def head(request, entry)
        asked = request.json
        { id: identifier("resp"), object: "response", created_at: Time.now.to_i, status: "in_progress", error: nil,
          incomplete_details: nil, instructions: asked["instructions"], max_output_tokens: asked["max_output_tokens"],
          metadata: asked["metadata"] || {}, model: entry.name, output: [],
          parallel_tool_calls: asked["parallel_tool_calls"] != false, previous_response_id: nil,
          reasoning: { effort: request.field("reasoning", Hash, default: {})["effort"], summary: nil }, store: false,
          temperature: asked["temperature"] || 1.0, text: asked["text"] || { format: { type: "text" } },
          tool_choice: asked["tool_choice"] || "auto", tools: asked["tools"] || [], top_p: asked["top_p"] || 1.0,
          truncation: "disabled", usage: nil }
      end

      def response(head, entry, result, message_id)
        cut = result.tool_calls.empty? && result.completion.finish_reason == :length
        head.merge(status: cut ? "incomplete" : "completed",
                   incomplete_details: cut ? { reason: "max_output_tokens" } : nil,
                   output: output(entry, result, message_id, cut), usage: tokens(result))
      end

      def output(entry, result, message_id, cut)
        text = result.text.to_s
        calls = result.tool_calls.map { |call| function_call(call) }
        calls = [*thoughts(result), *calls]
        return calls if text.strip.empty? && result.tool_calls.any?

        part = { type: "output_text", text: text, annotations: [],
                 logprobs: logprobs_of(entry, result)&.fetch(:content) || [] }
        message = { type: "message", id: message_id, status: cut ? "incomplete" : "completed", role: "assistant",
                    content: [part] }
        calls.insert(result.reasoning ? 1 : 0, message)
      end

      def thoughts(result)
        return [] unless result.reasoning

        [{ type: "reasoning", id: identifier("rs"), status: "completed", summary: [],
           content: [{ type: "reasoning_text", text: result.reasoning }] }]
      end

      def function_call(call)
        { type: "function_call", id: identifier("fc"), call_id: call.id || identifier("call"), name: call.name,
          arguments: JSON.generate(call.arguments), status: "completed" }
      end

      def tokens(result)
        usage = result.completion.usage
        { input_tokens: usage.prompt_tokens, input_tokens_details: { cached_tokens: usage.cached_tokens.to_i },
          output_tokens: usage.completion_tokens, output_tokens_details: { reasoning_tokens: reasoning_tokens(result) },
          total_tokens: usage.prompt_tokens + usage.completion_tokens }
      end

      def streamed(request, entry, generation, head)
        failure = lambda do |problem|
          Stream.event({ type: "error", code: problem.code, message: problem.message, param: problem.param },
                       event: "error")
        end
        stream(request, "text/event-stream", failure: failure) do |emit|
          message_id = identifier("msg")
          events = ResponsesEvents.new(head, message_id, emit)
          result = generation.run do |kind, piece, tokens|
            events.reasoning(piece) if kind == :reasoning
            events.text(piece, likelihoods(entry, tokens)&.fetch(:content) || []) if kind == :text
          end
          events.finish(response(head, entry, result, message_id))
        end
      end
    end
  end
end
