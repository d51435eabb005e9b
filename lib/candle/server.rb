# frozen_string_literal: true

require "candle"

module Candle
  # Defined before its parts, which would else ask for this file again.
  class Server; end
end

require "candle/server/limits"
require "candle/server/problem"
require "candle/server/connection"
require "candle/server/gate"
require "candle/server/job"
require "candle/server/request"
require "candle/server/multipart"
require "candle/server/storage"
require "candle/server/access"
require "candle/server/models"
require "candle/server/metrics"
require "candle/server/stream"
require "candle/server/log"
require "candle/server/picture"
require "candle/server/chat_messages"
require "candle/server/generation"
require "candle/server/rewriting"
require "candle/server/embedding_inputs"
require "candle/server/api"
require "candle/server/open_ai"
require "candle/server/open_ai_chat"
require "candle/server/language_names"
require "candle/server/open_ai_audio"
require "candle/server/open_ai_completions"
require "candle/server/response_store"
require "candle/server/responses_input"
require "candle/server/responses_events"
require "candle/server/open_ai_responses"
require "candle/server/adapters"
require "candle/server/open_ai_files"
require "candle/server/batch_input"
require "candle/server/batch_results"
require "candle/server/batch_run"
require "candle/server/batches"
require "candle/server/open_ai_batches"
require "candle/server/tei"
require "candle/server/pipelines"
require "candle/server/inference_tasks"
require "candle/server/rerank"
require "candle/server/ollama"
require "candle/server/anthropic_input"
require "candle/server/anthropic_answer"
require "candle/server/anthropic"
require "candle/server/fields"
require "candle/server/embedding_service"
require "candle/server/operations"
require "candle/server/router"
require "candle/server/puma_repairs"
require "candle/server/launcher"

module Candle
  # Models behind HTTP, as clients of OpenAI, Anthropic, Text Embeddings Inference, Cohere, Jina and Ollama expect them.
  # A Rack application for Rack 2 and 3: run it with `red-candle serve`, in a `config.ru`, or mounted in another
  # application.
  #
  # @example
  #   server = Candle::Server.new(models: { "tiny" => "spec/fixtures/tiny/bert-sentence" })
  #   status, = server.call("REQUEST_METHOD" => "GET", "PATH_INFO" => "/ready")
  #   status # => 200
  class Server
    # The Rack parts of an answer that the client left before it came.
    GONE = [499, { "content-type" => "text/plain" }, []].freeze
    # Methods that are counted by their names.
    VERBS = %w[GET HEAD POST DELETE OPTIONS].freeze
    private_constant :GONE, :VERBS

    # @return [Models] the models by name
    attr_reader :models
    # @return [Limits]
    attr_reader :limits

    # @param models [Hash{String => Model, String, Hash}] by name: loaded models, sources whose kind is found from their
    #   files, or `{source:, kind:}` with further options of `from_pretrained`
    # @param token [String, nil] what clients must send as `Authorization: Bearer` or `X-Api-Key`; without one
    #   the server answers only this machine
    # @param device [Device, String, nil] for models that are loaded here; nil is the best one
    # @param lazy [Boolean] whether sources are loaded when they are first asked for, instead of now
    # @param cors [String, Array<String>, nil] origins of web pages that may ask; `"*"` is all, nil none
    # @param allow_remote [Boolean] whether other machines may ask without a token, for an application that guards the
    #   server itself
    # @param storage [String, nil] the folder of uploaded files, batches and responses; nil is a temporary one, which
    #   ends with the process
    # @param adapters [String, nil] the folder of LoRA adapters that clients with the token may load and unload; nil
    #   lets nobody do so
    # @param limits [Hash] see {Limits::DEFAULTS}
    # @raise [ArgumentError] for no model, an unknown limit, an empty token
    # @raise [Error] when a model can't be loaded
    def initialize(models:, token: nil, device: nil, lazy: false, cors: nil, allow_remote: false, storage: nil,
                   adapters: nil, **limits)
      @limits = Limits.new(**limits)
      @access = Access.new(token: token, cors: cors, allow_remote: allow_remote)
      @models = Models.new(models, device: device)
      @gate = Gate.new(running: @limits.running, waiting: @limits.waiting)
      @metrics = Metrics.new
      @fields = Fields.new
      @router = Router.new(API::Services.new(models: @models, limits: @limits, gate: @gate, metrics: @metrics,
                                             storage: Storage.new(storage, @limits),
                                             adapters: Adapters.folder(adapters, token)))
      @models.load unless lazy
    end

    # Answers a request.
    #
    # @param env [Hash] of Rack
    # @return [Array(Integer, Hash, #each)] status, headers, body
    def call(env)
      request = Request.new(env, limits)
      route = nil
      return preflight(request) if request.verb == "OPTIONS"

      @access.check(request)
      @router.batches.resume
      route = @router.find(request.verb, request.path)
      raise Job::Gone if request.connection.left?

      answer = route.action.call(request)
      @fields.tell(route.name, request.parsed) if request.parsed
      finish(request, route, *answer)
    rescue Job::Gone
      observed(request, route, 499, cancelled: true)
      GONE
    rescue *Problem::ANSWERED => e
      refuse(request, route, Problem.for(e))
    end

    # Takes no further requests to compute; `/ready` says so. Those under way end as usual. Batches stop where they
    # are: with a `storage` the next server goes on with them.
    #
    # @return [void]
    def close
      @gate.close
      @router.batches.close
    end

    # @return [String] one line
    def inspect
      "#<Candle::Server #{models.map(&:name).join(", ")}>"
    end

    private

    def finish(request, route, status, headers, body)
      headers = headers.merge(request.marks, @access.headers(request))
      if body.is_a?(Stream)
        body.on_end { |error| observed(request, route, status, cancelled: cancelled?(error)) }
      else
        observed(request, route, status)
      end
      [status, headers, request.verb == "HEAD" ? [] : body]
    end

    # What was raised while writing came from the web server: nobody reads any more.
    def cancelled?(error)
      !error.nil? && !error.is_a?(Problem)
    end

    def refuse(request, route, problem)
      dialect = route&.dialect || @router.dialect(request.path)
      status = dialect.status(problem)
      @metrics.add("candle_rejected_total") if status == 429
      headers = { "content-type" => "application/json" }.merge(problem.headers, request.marks, @access.headers(request))
      observed(request, route, status)
      [status, headers, [JSON.generate(dialect.error(problem))]]
    end

    def preflight(request)
      allowed = @access.headers(request)
      observed(request, nil, allowed.empty? ? 403 : 204)
      [allowed.empty? ? 403 : 204, allowed.merge(request.marks), []]
    end

    def observed(request, route, status, cancelled: false)
      name = route ? route.name : "other"
      verb = VERBS.include?(request.verb) ? request.verb : "other"
      @metrics.add("candle_requests_total", method: verb, route: name, status: status)
      @metrics.add("candle_cancelled_total") if cancelled
      @metrics.observe("candle_request_seconds", Process.clock_gettime(Process::CLOCK_MONOTONIC) - request.began,
                       route: name)
      Log.write(request, name, status, cancelled: cancelled)
    end
  end
end
