# frozen_string_literal: true

require "time"

module Candle
  class Server
    # Ollama's dialect, whose answers come as lines of JSON.
    #
    # @api private
    class Ollama < API
      # Ollama's options, and the fields of {GenerationConfig} they mean.
      OPTIONS = { "num_predict" => :max_length, "temperature" => :temperature, "top_p" => :top_p, "top_k" => :top_k,
                  "min_p" => :min_p, "seed" => :seed, "stop" => :stop_sequences,
                  "repeat_penalty" => :repetition_penalty, "repeat_last_n" => :repetition_penalty_last_n,
                  "presence_penalty" => :presence_penalty, "frequency_penalty" => :frequency_penalty }.freeze
      # What Ollama takes where a request does not say it.
      USUAL = { temperature: 0.8, top_p: 0.9, top_k: 40 }.freeze
      # What can be done with models of a kind; others are told by their kind.
      CAPABILITIES = { vlm: %w[completion vision], seq2seq: %w[completion], embedding: %w[embedding],
                       clip: %w[embedding vision], image_embedding: %w[embedding vision] }.freeze
      # What Ollama says of a model that it never unloads.
      NEVER = "0001-01-01T00:00:00Z"
      private_constant :USUAL, :CAPABILITIES, :NEVER

      # @param problem [Problem]
      # @return [Hash]
      def error(problem)
        { error: problem.message }
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: the answer to a prompt
      def generate(request)
        entry = model(request)
        prompt = request.field("prompt", String, default: "")
        texts(prompt, "prompt")
        raw = request.flag("raw", false)
        if raw && request.field("images", Array, default: []).any?
          raise invalid("a raw prompt can't have images", param: "images")
        end

        input = raw ? prompt : instructed(request, entry, prompt)
        answer(request, entry, input) { |text, _, thought| { response: text, thinking: thought }.compact }
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: the answer to a conversation
      def chat(request)
        entry = model(request)
        messages = ChatMessages.read(request.field("messages", Array), limits, entry)
        tools = request.field("tools", Array, default: []).each_with_index.map do |tool, index|
          ChatMessages.tool(tool, "tools[#{index}]")
        end
        answer(request, entry, messages, tools: tools) do |text, calls, thought|
          message = { role: "assistant", content: text, thinking: thought }.compact
          message[:tool_calls] = calls.map { |call| tool_call(call) } if calls.any?
          { message: message }
        end
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: vectors
      def embed(request)
        began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        entry = models.fetch(request.field("model", String), :embedding, :clip)
        inputs = texts(request.field("input", String, Array), "input").first
        vectors, tokens = vectors(request, entry, inputs)
        json({ model: entry.name, embeddings: vectors, total_duration: nanoseconds(began), load_duration: 0,
               prompt_eval_count: tokens })
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: one vector, as older clients ask for it
      def embeddings(request)
        entry = models.fetch(request.field("model", String), :embedding, :clip)
        texts(request.field("prompt", String), "prompt")
        json({ embedding: vectors(request, entry, [request.json["prompt"]]).first.first })
      end

      # @param _request [Request]
      # @return [Array] an answer of Rack: the models
      def tags(_request)
        json({ models: models.with_adapters.map { |entry| listed(entry) } })
      end

      # @param _request [Request]
      # @return [Array] an answer of Rack: the models that are loaded
      def ps(_request)
        json({ models: models.select(&:loaded?).map { |entry| running(entry) } })
      end

      # A server has the models that it was started with: pulling one of them loads it; others are missing.
      #
      # @param request [Request]
      # @return [Array] an answer of Rack: how far it is
      def pull(request)
        entry = named(request)
        unless request.flag("stream", true)
          compute(request) { entry.model }
          return json({ status: "success" })
        end

        stream(request, "application/x-ndjson", failure: ->(problem) { Stream.line(error(problem)) }) do |emit|
          emit.call(Stream.line({ status: "pulling manifest" }))
          entry.model
          emit.call(Stream.line({ status: "success" }))
        end
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: what is known of a model
      def show(request)
        entry = named(request)
        info = entry.model.model_info
        json({ modelfile: "", parameters: "", template: template(entry), details: details(entry),
               modified_at: entry.loaded_at.iso8601, capabilities: capabilities(entry),
               model_info: { "general.architecture" => info[:family].to_s,
                             "general.parameter_count" => info[:parameters],
                             "#{info[:family]}.context_length" => info[:max_length],
                             "#{info[:family]}.embedding_length" => info[:hidden_size] }.compact })
      end

      # @param _request [Request]
      # @return [Array] an answer of Rack
      def version(_request)
        json({ version: VERSION })
      end

      private

      # Older clients say `name`.
      def named(request)
        name = request.json.key?("model") ? "model" : "name"
        raise invalid("model is missing", param: "model") if request.json[name].nil?

        models.fetch(request.field(name, String))
      end

      def running(entry)
        device = entry.model.device
        listed(entry).except(:modified_at)
                     .merge(expires_at: NEVER, size_vram: device.kind.to_s == "cpu" ? 0 : entry.bytes,
                            context_length: entry.model.model_info[:max_length]).compact
      end

      def model(request)
        models.fetch(request.field("model", String), *WRITERS)
      end

      def instructed(request, entry, prompt)
        system = request.field("system", String, default: nil)
        told = [*([{ "role" => "system", "content" => system }] if system),
                { "role" => "user", "content" => prompt, "images" => request.field("images", Array, default: []) }]
        ChatMessages.read(told, limits, entry)
      end

      def answer(request, entry, input, tools: [], &shape)
        generation = answer_to(entry, input, options: options(request), usual: USUAL, tools: tools,
                                             fields: request.field("options", Hash, default: {}),
                                             schema: schema(request), reasoning: thinking(request))
        head = -> { { model: entry.name, created_at: Time.now.utc.iso8601(6) } }
        return streamed(request, generation, head, &shape) if request.flag("stream", true)

        result = compute(request) { generation.run }
        json(head.call.merge(shape.call(result.text.to_s, result.tool_calls, result.reasoning),
                             ending(request, result)))
      end

      def streamed(request, generation, head, &shape)
        stream(request, "application/x-ndjson", failure: ->(problem) { Stream.line(error(problem)) }) do |emit|
          line = ->(value) { emit.call(Stream.line(head.call.merge(value))) }
          result = generation.run do |kind, piece|
            line.call(shape.call(piece, []).merge(done: false)) if kind == :text
            line.call(shape.call("", [], piece).merge(done: false)) if kind == :reasoning
          end
          line.call(shape.call("", result.tool_calls).merge(done: false)) if result.tool_calls.any?
          line.call(shape.call("", []).merge(ending(request, result)))
        end
      end

      def ending(request, result)
        usage = result.completion.usage
        timings = result.completion.timings
        total = nanoseconds(request.began)
        prompt = (timings.prompt_ms.to_f * 1_000_000).round
        { done: true, done_reason: result.completion.finish_reason == :length ? "length" : "stop",
          total_duration: total, load_duration: 0, prompt_eval_count: usage.prompt_tokens, prompt_eval_duration: prompt,
          eval_count: usage.completion_tokens, eval_duration: [total - prompt, 0].max }
      end

      def options(request)
        fields = sampling_of(request.field("options", Hash, default: {}), OPTIONS, "options")
        fields.delete(:max_length) unless fields[:max_length].to_i.positive?
        fields[:repetition_penalty_last_n] = nil if fields[:repetition_penalty_last_n].to_i.negative?
        if fields.fetch(:max_length, 0) > limits.max_tokens
          raise invalid("num_predict must be at most #{limits.max_tokens}")
        end

        fields
      end

      # Whether, or with what effort, the model is to think.
      def thinking(request)
        case (wish = request.json["think"])
        when nil then {}
        when true, false then { reasoning: wish }
        when String then reasoning_of("think", reasoning_effort: wish)
        else raise invalid("think must be true, false or an effort", param: "think")
        end
      end

      def schema(request)
        case (format = request.json["format"])
        when nil, "" then nil
        when "json" then { "type" => "object" }
        when Hash then format
        else raise invalid("format must be json or a JSON schema", param: "format")
        end
      end

      def vectors(request, entry, inputs)
        options = { truncate: request.flag("truncate", true),
                    dimensions: request.field("dimensions", Integer, default: nil) }
        found = compute(request) do
          next EmbeddingInputs.new(inputs).embed(entry.model, **options.slice(:dimensions)) if entry.kind == :clip

          [entry.model.embed(inputs, **options), inputs.sum { |text| entry.model.count_tokens(text) }]
        end
        count_tokens(entry, input: found.last)
        found
      end

      def tool_call(call)
        { function: { name: call.name, arguments: call.arguments } }
      end

      # A list loads nothing: of a model that nobody has asked for only the name is told.
      def listed(entry)
        named = { name: entry.name, model: entry.name }
        return named unless entry.loaded?

        named.merge(modified_at: entry.loaded_at.iso8601, size: entry.bytes, digest: entry.digest,
                    details: details(entry))
      end

      def details(entry)
        info = entry.model.model_info
        gguf = info[:files].any? { |file| file.end_with?(".gguf") }
        { parent_model: "", format: gguf ? "gguf" : "safetensors", family: info[:family].to_s,
          families: [info[:family].to_s], parameter_size: parameter_size(info[:parameters]),
          quantization_level: info[:dtype].to_s.upcase }
      end

      def parameter_size(count)
        return "" unless count

        count >= 1_000_000_000 ? format("%.1fB", count / 1e9) : format("%.1fM", count / 1e6)
      end

      def capabilities(entry)
        return CAPABILITIES.fetch(entry.kind) { [entry.kind.to_s] } unless entry.kind == :llm

        known = template(entry)
        thinks = ReasoningFormat.find([known]) { nil }
        ["completion", *("tools" if known.include?("tools")), *("thinking" if thinks)]
      end

      def template(entry)
        entry.model.tokenizer&.chat_templates&.values&.first.to_s
      end

      def nanoseconds(began)
        ((Process.clock_gettime(Process::CLOCK_MONOTONIC) - began) * 1_000_000_000).round
      end
    end
  end
end
