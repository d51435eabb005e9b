# frozen_string_literal: true

require "stringio"

module Candle
  class CLI
    # `red-candle mcp`.
    #
    # @api private
    class Mcp < Verb
      include GenerationOptions

      TEXTS = { type: "array", items: { type: "string" }, minItems: 1, maxItems: 1024 }.freeze
      TOP = { type: "integer", minimum: 1, maximum: 1000 }.freeze
      TOP_K = 5
      ROLES = %w[system user assistant].freeze
      private_constant :TEXTS, :TOP, :TOP_K, :ROLES

      # @return [void]
      def call
        check_options
        @models = {}
        @loading = Mutex.new
        server = MCP::Server.new(tools: tools)
        with_protocol_output do |output|
          Terminal.note("serving the tools #{server.tools.map(&:name).join(", ")}")
          server.run($stdin, output)
        end
      end

      private

      def check_options
        if options.values_at(:embed, :rerank, :ner, :transcribe, :chat).none?
          raise ArgumentError, "mcp needs a model, as in: red-candle mcp --embed SOURCE"
        end
        if options[:index] && !options[:embed]
          raise ArgumentError, "--index needs --embed with the model that built the index"
        end
        raise ArgumentError, "--texts needs --index" if options[:texts] && !options[:index]

        Records.check(options.values_at(:index, :texts).compact)
      end

      # Whatever else writes to standard output must not disturb the protocol.
      def with_protocol_output
        before = $stdout
        if before.is_a?(IO) && $stderr.is_a?(IO)
          before.flush
          own = before.dup
          before.reopen($stderr)
        end
        $stdout = $stderr
        yield own || before
      ensure
        before.reopen(own) if own
        own&.close
        $stdout = before
      end

      def tools
        [(embed_tool if options[:embed]), (rerank_tool if options[:rerank]), (search_tool if options[:index]),
         (extract_tool if options[:ner]), (transcribe_tool if options[:transcribe]),
         (chat_tool if options[:chat])].compact
      end

      # Models are loaded by their first call.
      def model(option, *kinds)
        @loading.synchronize { @models[option] ||= load_model(kind_of(options[option], *kinds), options[option]) }
      end

      def tool(name, description, properties, required, &block)
        schema = { type: "object", properties: properties, required: required, additionalProperties: false }
        Tool.new(name: name, description: description, parameters: schema, &block)
      end

      def embed_tool
        properties = { texts: TEXTS, prompt_name: { type: "string", description: "a prompt of the model, as query" } }
        tool("embed", "Embeds texts as vectors", properties, %w[texts]) do |given|
          vectors = model(:embed, :embedding).embed(given["texts"], prompt_name: given["prompt_name"])
          { embeddings: vectors }
        end
      end

      def rerank_tool
        properties = { query: { type: "string" }, documents: TEXTS, top_k: TOP }
        tool("rerank", "Sorts documents by their relevance to a query", properties, %w[query documents]) do |given|
          found = model(:rerank, :reranker).rerank(given["query"], given["documents"], top_k: given["top_k"]&.to_i)
          { results: found.map { |entry| entry.slice(:index, :score, :text) } }
        end
      end

      def search_tool
        properties = { query: { type: "string" }, top_k: TOP }
        tool("search", "Finds passages of the indexed texts by meaning, best first", properties, %w[query]) do |given|
          embedder = model(:embed, :embedding)
          prompt = embedder.prompts.key?("query") ? "query" : nil
          vector = embedder.embed(given["query"], normalize: true, prompt_name: prompt)
          { results: library(embedder).search(vector, (given["top_k"] || TOP_K).to_i) }
        end
      end

      def library(embedder)
        @loading.synchronize do
          @library ||= McpLibrary.new(options[:index], texts: options[:texts], model: options[:embed],
                                                       dimension: embedder.dimension)
        end
      end

      def extract_tool
        properties = { text: { type: "string" }, threshold: { type: "number", minimum: 0, maximum: 1 },
                       labels: { type: "array", items: { type: "string" }, description: "only these kinds" } }
        tool("extract", "Finds named entities in a text", properties, %w[text]) do |given|
          found = model(:ner, :ner).extract_entities(given["text"], confidence_threshold: given["threshold"] || 0.9,
                                                                    aggregation: :first)
          wanted = given["labels"]&.map(&:downcase)
          found = found.select { |entity| wanted.include?(entity[:label].downcase) } if wanted
          { entities: found.map { |entity| entity.slice(:text, :label, :start, :end, :confidence) } }
        end
      end

      def transcribe_tool
        properties = { path: { type: "string", description: "an audio file of this machine" },
                       audio: { type: "string", description: "the bytes of an audio file, as Base64" },
                       language: { type: "string", description: "such as en; found by the model where it is missing" },
                       translate: { type: "boolean", description: "whether to translate into English" } }
        tool("transcribe", "Writes down what is spoken in an audio file", properties, []) do |given|
          task = given["translate"] ? :translate : :transcribe
          found = model(:transcribe, :speech).transcribe(spoken(given), language: given["language"], task: task)
          { text: found.text.strip, language: found.language,
            segments: found.segments.map { |segment| segment.slice(:start, :end, :text) } }
        end
      end

      def spoken(given)
        path, audio = given.values_at("path", "audio")
        raise InvalidInputError, "give either the path or the bytes of an audio file" unless [path, audio].one?

        Audio.open(path || StringIO.new(audio.unpack1("m0")))
      rescue ArgumentError
        raise InvalidInputError, "audio is not valid Base64"
      end

      def chat_tool
        message = { type: "object", required: %w[role content], additionalProperties: false,
                    properties: { role: { enum: ROLES }, content: { type: "string" } } }
        properties = { messages: { type: "array", items: message, minItems: 1 },
                       max_tokens: { type: "integer", minimum: 1 }, temperature: { type: "number", minimum: 0 } }
        tool("chat", "Lets a language model answer a conversation", properties, %w[messages]) do |given|
          overrides = { max_length: given["max_tokens"]&.to_i, temperature: given["temperature"] }.compact
          model(:chat, :llm, :vlm).chat(given["messages"], config: generation_config, **overrides)
        end
      end
    end
  end
end
