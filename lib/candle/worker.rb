# frozen_string_literal: true

require "candle/server"
require "candle/worker/execution"
require "candle/worker/callback"

module Candle
  # One language model as the worker of an orchestrator: jobs come by `POST /execute` and are answered by server-sent
  # events, each token when it is there. A Rack application, like {Server}.
  #
  # @example
  #   worker = Candle::Worker.new(worker_id: "w1", model: "spec/fixtures/tiny/decoders/llama")
  #   status, = worker.call("REQUEST_METHOD" => "GET", "PATH_INFO" => "/ready")
  #   status # => 200
  class Worker
    # @return [String]
    attr_reader :worker_id
    # @return [LLM]
    attr_reader :model
    # @return [Server::Limits]
    attr_reader :limits

    # Loads the model, lets it compute something, and forgets that again.
    #
    # @param worker_id [String]
    # @param model [LLM, String] a model, or its source
    # @param device [Device, String, nil] nil is the best one
    # @param token [String, nil] what the orchestrator must send as `Authorization: Bearer`; without one the worker
    #   answers this machine only
    # @param allow_remote [Boolean] whether other machines may ask without a token
    # @param limits [Hash] see {Server::Limits::DEFAULTS}
    def initialize(worker_id:, model:, device: nil, token: nil, allow_remote: false, **limits)
      raise ArgumentError, "worker_id must not be empty" if worker_id.to_s.empty?

      @worker_id = worker_id.to_s
      @limits = Server::Limits.new(running: 1, waiting: 8, **limits)
      @access = Server::Access.new(token: token, allow_remote: allow_remote)
      @gate = Server::Gate.new(running: @limits.running, waiting: @limits.waiting)
      @metrics = Server::Metrics.new
      @model = model.respond_to?(:complete) ? model : LLM.from_pretrained(model, device: device)
      @model.warm_up
      @model.clear_cache
      @execution = Execution.new(self, gate: @gate, metrics: @metrics)
    end

    # @param env [Hash] of Rack
    # @return [Array(Integer, Hash, #each)] status, headers, body
    def call(env)
      request = Server::Request.new(env, limits)
      @access.check(request)
      status, headers, body = answer(request)
      @metrics.add("candle_requests_total", method: request.verb, route: request.path, status: status)
      [status, headers.merge(request.marks), body]
    rescue Server::Job::Gone
      [499, {}, []]
    rescue *Server::Problem::ANSWERED => e
      refuse(request, Server::Problem.for(e))
    end

    # @return [Integer] bytes that the model's weights take on its device
    def vram_bytes
      model.model_info.fetch(:weight_bytes)
    end

    # Takes no further jobs; those under way end as usual.
    #
    # @return [void]
    def close
      @gate.close
    end

    # Tells the orchestrator that the worker is there.
    #
    # @param callback_url [String] `none`, or a host that says so, tells nobody
    # @param uri [String] where the worker listens
    # @return [Boolean] whether someone was told
    # @raise [Error] when the orchestrator can't be told after all retries
    def announce(callback_url, uri)
      Callback.new(callback_url).post({ worker_id: worker_id, vram_bytes: vram_bytes, uri: uri })
    end

    # @return [String] one line
    def inspect
      "#<Candle::Worker #{worker_id} #{model.model_id}>"
    end

    private

    def answer(request)
      case "#{request.verb} #{request.path}"
      when "POST /execute" then @execution.call(request)
      when "GET /health" then json({ status: "ok", worker_id: worker_id })
      when "GET /ready" then json({ ready: !@gate.closed? }, @gate.closed? ? 503 : 200)
      when "GET /capabilities" then json(capabilities)
      when "GET /metrics" then [200, { "content-type" => Server::Metrics::CONTENT_TYPE }, [@metrics.render(gauges)]]
      else raise Server::Problem.new(404, "NOT_FOUND", "there is nothing at this path")
      end
    end

    def capabilities
      { capabilities: [model.device.kind.to_s], device: model.device.to_s, backend: "candle" }
    end

    def gauges
      { "candle_running" => ["Jobs that compute", { {} => @gate.running }],
        "candle_waiting" => ["Jobs that wait", { {} => @gate.waiting }],
        "candle_vram_bytes" => ["Bytes of the model's weights", { {} => vram_bytes }] }
    end

    def refuse(request, problem)
      body = { error: { code: Execution.code(problem), message: problem.message } }
      body[:errors] = problem.fields if problem.respond_to?(:fields)
      json(body, problem.status, problem.headers.merge(request.marks))
    end

    def json(value, status = 200, headers = {})
      [status, { "content-type" => "application/json" }.merge(headers), [JSON.generate(value)]]
    end
  end
end
