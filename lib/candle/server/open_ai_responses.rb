# frozen_string_literal: true

module Candle
  class Server
    # OpenAI's `/v1/responses`. What was answered is kept for a while, so that a conversation can go on from it.
    #
    # @api private
    class OpenAIResponses < OpenAIChat
      # What asks for log probabilities.
      LOGPROBS = "message.output_text.logprobs"
      private_constant :LOGPROBS

      # @param services [API::Services]
      def initialize(services)
        super
        @store = ResponseStore.new(services.storage)
      end

      # @param request [Request]
      # @return [Array] an answer of Rack
      def create(request)
        entry = models.fetch(request.field("model", String, default: nil), *WRITERS)
        generation = generation(request, entry)
        head = head(request, entry)
        return streamed(request, entry, generation, head) if request.flag("stream", false)

        result = compute(request) { generation.run }
        made = response(head, entry, result)
        keep(request, made)
        json(made)
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: a response that was kept
      def show(request)
        json(kept(request)["response"])
      end

      # @param request [Request]
      # @return [Array] an answer of Rack
      def delete(request)
        id = kept(request)["response"]["id"]
        @store.delete(id)
        json({ id: id, object: "response", deleted: true })
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: what a response was the answer to
      def input_items(request)
        found = kept(request)
        prefix = found["response"]["id"].sub("resp", "item")
        items = found["items"].each_with_index.map do |item, index|
          { id: "#{prefix}_#{index}", type: "message", status: "completed", **item }
        end
        json(page(request, items.map { |item| item.transform_keys(&:to_sym) }, 100, &:itself))
      end

      private

      def identifier(prefix)
        "#{prefix}_#{SecureRandom.hex(16)}"
      end

      def kept(request)
        id = request.path.split("/")[3]
        @store.fetch(id) || raise(Problem.new(404, "not_found", "there is no response #{id.inspect[0, 60]}"))
      end

      def keep(request, response)
        @store.keep(response, input(request)) if response[:store]
      end

      # @return [Array] the items of the request itself
      def input(request)
        input = request.field("input", String, Array)
        raise invalid("input must not be empty", param: "input") if input.empty?

        input.is_a?(String) ? [{ "role" => "user", "content" => input }] : input
      end

      def messages(request, entry)
        previous = request.field("previous_response_id", String, default: nil)
        items = [*(@store.conversation(previous, limits.batch) if previous), *input(request)]
        instructions = request.field("instructions", String, default: nil)
        ChatMessages.read(ResponsesInput.messages(items, instructions), limits, entry)
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
          parallel_tool_calls: asked["parallel_tool_calls"] != false,
          previous_response_id: asked["previous_response_id"],
          prompt_cache_key: request.field("prompt_cache_key", String, default: nil),
          reasoning: { effort: request.field("reasoning", Hash, default: {})["effort"], summary: nil },
          store: request.flag("store", true),
          temperature: asked["temperature"] || 1.0, text: asked["text"] || { format: { type: "text" } },
          tool_choice: asked["tool_choice"] || "auto", tools: asked["tools"] || [], top_p: asked["top_p"] || 1.0,
          truncation: "disabled", usage: nil }
      end

      def response(head, entry, result)
        cut = result.tool_calls.empty? && result.completion.finish_reason == :length
        head.merge(status: cut ? "incomplete" : "completed",
                   incomplete_details: cut ? { reason: "max_output_tokens" } : nil,
                   output: output(entry, result, cut), usage: tokens(result))
      end

      def output(entry, result, cut)
        text = result.text.to_s
        calls = result.tool_calls.map { |call| function_call(call) }
        calls = [*thoughts(result), *calls]
        return calls if text.strip.empty? && result.tool_calls.any?

        part = { type: "output_text", text: text, annotations: [],
                 logprobs: logprobs_of(entry, result)&.fetch(:content) || [] }
        message = { type: "message", id: identifier("msg"), status: cut ? "incomplete" : "completed", role: "assistant",
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
          events = ResponsesEvents.new(head, method(:identifier), emit)
          result = generation.run { |kind, piece, tokens| event(events, entry, kind, piece, tokens) }
          events.finish(response(head, entry, result)) { |whole| keep(request, whole) }
        end
      end

      def event(events, entry, kind, value, tokens)
        case kind
        when :reasoning then events.reasoning(value)
        when :text then events.text(value, likelihoods(entry, tokens)&.fetch(:content) || [])
        when :tool_call then events.call(value[:index], value[:name])
        when :arguments then events.arguments(value[:index], value[:json])
        end
      end
    end
  end
end
