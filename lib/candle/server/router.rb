# frozen_string_literal: true

module Candle
  class Server
    # Which method of which dialect answers a path.
    #
    # @api private
    class Router
      # A way through the server: the name for metrics, what answers, and the dialect that errors are told in.
      Route = Struct.new(:name, :action, :dialect)

      # @param services [API::Services]
      def initialize(services)
        @routes = Hash.new { |paths, path| paths[path] = {} }
        @batches = Batches.new(services, self)
        operations = Operations.new(services)
        @tei = InferenceTasks.new(services)
        @open_ai = OpenAI.new(services)
        @ollama = Ollama.new(services)
        @anthropic = Anthropic.new(services)
        @service = EmbeddingService.new(services)
        add_operations(operations)
        add_open_ai(services)
        add_tei(services)
        add_others
        @patterns = @routes.select { |path, _| path.include?("*") }.transform_keys { |path| pattern(path) }
      end

      # @return [Batches] what is computed in the background
      attr_reader :batches

      # @param verb [String]
      # @param path [String]
      # @return [Route]
      # @raise [Problem] 404 or 405
      def find(verb, path)
        methods = @routes.fetch(path) { @patterns.find { |pattern, _| pattern.match?(path) }&.last }
        raise Problem.new(404, "not_found", "there is nothing at this path") unless methods

        methods[verb == "HEAD" ? "GET" : verb] ||
          raise(Problem.new(405, "method_not_allowed", "this path takes #{methods.keys.join(" or ")}",
                            headers: { "allow" => methods.keys.join(", ") }))
      end

      # @param path [String]
      # @return [API] whose form an error at a path has
      def dialect(path)
        case path
        when %r{\A/v1/messages(/|\z)} then @anthropic
        when %r{\A/v1/} then @open_ai
        when %r{\A/api/v1/} then @service
        when %r{\A/api/} then @ollama
        else @tei
        end
      end

      private

      def add(verb, path, action)
        @routes[path][verb] = Route.new(path, action, action.receiver)
      end

      # A star in the middle is one part of a path; names of models may have several.
      def pattern(path)
        /\A#{Regexp.escape(path).sub(/\\\*\z/, ".+").gsub("\\*", "[^/]+")}\z/
      end

      def add_operations(operations)
        add("GET", "/", operations.method(:page))
        add("GET", "", operations.method(:page))
        add("GET", "/health", operations.method(:health))
        add("GET", "/ready", operations.method(:ready))
        add("GET", "/metrics", operations.method(:metrics))
      end

      def add_open_ai(services)
        add("GET", "/v1/models", @open_ai.method(:models_list))
        add("GET", "/v1/models/*", @open_ai.method(:model))
        add("POST", "/v1/embeddings", @open_ai.method(:embeddings))
        add("POST", "/v1/chat/completions", OpenAIChat.new(services).method(:create))
        add("POST", "/v1/completions", OpenAICompletions.new(services).method(:create))
        add_responses(OpenAIResponses.new(services))
        adapters = Adapters.new(services)
        add("POST", "/v1/load_lora_adapter", adapters.method(:load))
        add("POST", "/v1/unload_lora_adapter", adapters.method(:unload))
        add_files(OpenAIFiles.new(services), OpenAIBatches.new(services, batches))
        audio = OpenAIAudio.new(services)
        %i[transcriptions translations].each { |name| add("POST", "/v1/audio/#{name}", audio.method(name)) }
      end

      def add_responses(responses)
        add("POST", "/v1/responses", responses.method(:create))
        add("GET", "/v1/responses/*/input_items", responses.method(:input_items))
        add("GET", "/v1/responses/*", responses.method(:show))
        add("DELETE", "/v1/responses/*", responses.method(:delete))
      end

      def add_files(files, batches)
        add("POST", "/v1/files", files.method(:create))
        add("GET", "/v1/files", files.method(:list))
        add("GET", "/v1/files/*/content", files.method(:content))
        add("GET", "/v1/files/*", files.method(:show))
        add("DELETE", "/v1/files/*", files.method(:delete))
        add("POST", "/v1/batches", batches.method(:create))
        add("GET", "/v1/batches", batches.method(:list))
        add("POST", "/v1/batches/*/cancel", batches.method(:cancel))
        add("GET", "/v1/batches/*", batches.method(:show))
      end

      def add_tei(services)
        add("POST", "/", @tei.method(:root))
        %i[embed embed_all embed_sparse predict similarity tokenize decode translate summarize classify_image
           describe].each do |name|
          add("POST", "/#{name}", @tei.method(name))
        end
        add("GET", "/info", @tei.method(:info))
        rerank = Rerank.new(services)
        %w[/v1/rerank /v2/rerank].each { |path| add("POST", path, rerank.method(:create)) }
        add("POST", "/rerank", @tei.method(:rerank))
      end

      def add_others
        %i[generate chat embed embeddings show pull].each { |name| add("POST", "/api/#{name}", @ollama.method(name)) }
        %i[tags ps version].each { |name| add("GET", "/api/#{name}", @ollama.method(name)) }
        add("POST", "/v1/messages", @anthropic.method(:create))
        add("POST", "/v1/messages/count_tokens", @anthropic.method(:count))
        add("POST", "/api/v1/embed", @service.method(:embed))
        add("POST", "/api/v1/entities", @service.method(:entities))
      end
    end
  end
end
