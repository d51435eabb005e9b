# frozen_string_literal: true

require "logger"
require "socket"

RSpec.describe Candle::Server do
  let(:server) { ServedModels.server }

  def logged
    lines = StringIO.new
    before = Candle.logger
    Candle.logger = Logger.new(lines, level: :info, formatter: ->(_, _, _, text) { "#{text}\n" })
    yield
    lines.string
  ensure
    Candle.logger = before
  end

  it "loads its models at start, or when they are first asked for" do
    sources = { "e" => TinyModels.path("bert-sentence"), "x" => { source: TinyModels.path("bert"), kind: "embedding" } }
    expect(described_class.new(models: sources).models).to be_loaded
    lazy = described_class.new(models: sources, lazy: true)
    expect(get(lazy, "/ready")).to have_attributes(status: 503, json: hash_including("status" => "not_ready"))
    expect(post(lazy, "/embed", { inputs: "a" }).status).to eq(200)
    expect(get(lazy, "/api/tags").json["models"]).to match([hash_including("name" => "e", "digest" => String),
                                                            { "name" => "x", "model" => "x" }])
    expect(get(lazy, "/ready").json["models"]).to eq("e" => true, "x" => false)
    expect(get(lazy, "/health").status).to eq(200)
  end

  it "refuses to be made of nothing" do
    expect { described_class.new(models: {}) }.to raise_error(ArgumentError, /one at least/)
    expect { described_class.new(models: { "a" => 7 }) }.to raise_error(ArgumentError, /a model or its source/)
    expect { described_class.new(models: { "a" => "/nowhere/x" }) }.to raise_error(Candle::ModelNotFoundError)
    expect { described_class.new(models: ServedModels.models, speed: 3) }.to raise_error(ArgumentError, /unknown limit/)
    expect do
      described_class.new(models: ServedModels.models, batch: 0)
    end.to raise_error(ArgumentError, /batch must be a positive/)
    expect { described_class.new(models: ServedModels.models, token: " ") }.to raise_error(ArgumentError, /token/)
  end

  describe "access" do
    let(:guarded) { described_class.new(models: ServedModels.models, token: "secret") }

    it "needs the token, where there is one" do
      expect(get(guarded, "/v1/models")).to have_attributes(status: 401,
                                                            headers: hash_including("www-authenticate" => "Bearer"))
      expect(get(guarded, "/v1/models", "HTTP_AUTHORIZATION" => "Bearer wrong").status).to eq(401)
      elsewhere = { "HTTP_AUTHORIZATION" => "Bearer secret", "REMOTE_ADDR" => "10.0.0.9",
                    "HTTP_HOST" => "models.example" }
      expect(get(guarded, "/v1/models", elsewhere).status).to eq(200)
      expect(get(guarded, "/metrics").status).to eq(401)
      expect(%w[/ /health /ready].map { |path| get(guarded, path).status }).to all(eq(200))
    end

    it "answers this machine only, where there is none" do
      expect(get(server, "/v1/models", "REMOTE_ADDR" => "10.0.0.9").status).to eq(403)
      expect(get(server, "/v1/models", "REMOTE_ADDR" => "::1", "HTTP_HOST" => "[::1]:80").status).to eq(200)
      expect(get(server, "/v1/models", "HTTP_HOST" => "evil.example").status).to eq(403)
      open = described_class.new(models: ServedModels.models, allow_remote: true)
      expect(get(open, "/v1/models", "REMOTE_ADDR" => "10.0.0.9", "HTTP_HOST" => "models.example").status).to eq(200)
    end

    it "answers pages of other sites only when asked to" do
      page = { "HTTP_ORIGIN" => "https://site.example" }
      expect(get(server, "/v1/models", page).status).to eq(403)
      expect(ask(server, "OPTIONS", "/v1/models", nil, page).status).to eq(403)
      expect(get(server, "/v1/models", "HTTP_ORIGIN" => "http://localhost:8080").status).to eq(200)
      expect(get(server, "/v1/models", "HTTP_ORIGIN" => "null").status).to eq(403)
      shared = described_class.new(models: ServedModels.models, cors: "https://site.example")
      expect(get(shared, "/v1/models", page).headers).to include("access-control-allow-origin" => "https://site.example")
      expect(ask(shared, "OPTIONS", "/v1/models", nil, page).status).to eq(204)
    end
  end

  it "takes another port of the same machine for another site" do
    asked = ->(origin, host) { get(server, "/v1/models", "HTTP_ORIGIN" => origin, "HTTP_HOST" => host).status }
    expect(asked.call("http://localhost:3000", "localhost:8080")).to eq(403)
    expect(asked.call("http://localhost", "localhost:8080")).to eq(403)
    expect(asked.call("http://localhost:8080", "localhost")).to eq(403)
    expect(asked.call("http://127.0.0.1:3000", "127.0.0.1:8080")).to eq(403)
    expect(asked.call("http://[::1]:3000", "[::1]:8080")).to eq(403)
    same = [%w[http://localhost:8080 localhost:8080], %w[http://LOCALHOST:8080 localhost:8080],
            %w[http://localhost localhost], %w[http://localhost localhost:80], %w[http://[::1]:8080 [::1]:8080],
            %w[https://localhost localhost], %w[https://localhost localhost:443]]
    expect(same.map { |origin, host| asked.call(origin, host) }).to all(eq(200))
    page = { "HTTP_ORIGIN" => "http://localhost:3000", "HTTP_HOST" => "localhost:8080" }
    shared = described_class.new(models: ServedModels.models, cors: "http://localhost:3000")
    expect(get(shared, "/v1/models", page).status).to eq(200)
  end

  it "logs fields that it does not know, once each" do
    server, = ServedModels.scripted("a")
    body = { model: "llm", messages: [{ role: "user", content: "x" }], max_token: 3, user: "me" }
    log = logged { 2.times { post(server, "/v1/chat/completions", body) } }
    lines = log.lines.grep(/unknown/)
    expect(lines).to eq(["POST /v1/chat/completions: the field \"max_token\" is unknown and ignored (did you mean " \
                         "max_tokens?); this is logged once\n"])
    log = logged { post(server, "/api/chat", body.except(:max_token, :user).merge(options: { num_ctx: 9, seed: 1 })) }
    expect(log.lines.grep(/unknown/)).to match([/the field "options.num_ctx" is unknown/])
    many = (0..400).to_h { |index| ["field#{index}", 1] }
    log = logged { post(server, "/v1/chat/completions", body.merge(many)) }
    expect(log.lines.grep(/unknown/).size).to be < 200
  end

  it "takes no more than its limits" do
    small = described_class.new(models: ServedModels.models, body_bytes: 200, batch: 2, characters: 20)
    expect(post(small, "/embed", { inputs: "x" * 300 })).to have_attributes(status: 413)
    chunked = ask(small, "POST", "/embed", { inputs: "x" * 300 }, "CONTENT_LENGTH" => nil)
    expect(chunked.json["error"]).to match(/larger than the 200 bytes/)
    expect(post(small, "/embed", { inputs: %w[a b c] }).json["error"]).to match(/3 elements, and the server takes 2/)
    expect(post(small, "/embed", { inputs: "x" * 21 }).json["error"]).to match(/21 characters/)
    expect(post(small, "/embed", "{\"inputs\": \"\xFF\"}").json["error"]).to eq("the body is not valid UTF-8")
    expect(post(small, "/embed", "[]").json["error"]).to eq("the body must be a JSON object")
    expect(post(small, "/embed", "[" * 90).status).to eq(400)
  end

  it "ends what takes too long, before and in a stream" do
    slow, llm = ServedModels.scripted("a b c d e f", pause: 0.2, seconds: 0.5)
    body = { model: "llm", messages: [{ role: "user", content: "x" }] }
    expect(post(slow, "/v1/chat/completions", body)).to have_attributes(status: 504, json: {
                                                                          "error" => hash_including("code" => "timeout")
                                                                        })
    events = post(slow, "/v1/chat/completions", body.merge(stream: true)).events
    expect(events.last["error"]).to include("code" => "timeout")
    expect(llm.finished).to eq(2)
  end

  it "sends away what it has no room for, and goes on" do
    busy, = ServedModels.scripted("a b c", pause: 0.3, running: 1, waiting: 1)
    body = { model: "llm", messages: [{ role: "user", content: "x" }] }
    answers = Array.new(4) { Thread.new { post(busy, "/v1/chat/completions", body) } }.map(&:value)
    expect(answers.map(&:status).tally).to eq(200 => 2, 429 => 2)
    refused = answers.find { |answer| answer.status == 429 }
    expect(refused.headers["retry-after"].to_i).to be >= 1
    expect(refused.json["error"]).to include("type" => "rate_limit_error")
    expect(post(busy, "/v1/chat/completions", body).status).to eq(200)
    expect(get(busy, "/metrics").text).to include("candle_rejected_total 2", "candle_running 0", "candle_waiting 0")
  end

  it "ends a generation whose client went away, whether it streams or not" do
    [true, false].each do |stream|
      server, llm = ServedModels.scripted("word " * 2000, pause: 0.02)
      client, socket = Socket.pair(:UNIX, :STREAM)
      env = { "REQUEST_METHOD" => "POST", "PATH_INFO" => "/v1/chat/completions", "puma.socket" => socket,
              "rack.input" => StringIO.new(JSON.generate(model: "llm", stream: stream,
                                                         messages: [{ role: "user", content: "x" }])) }
      request = Thread.new do
        _, _, body = server.call(env)
        count = 0
        body.each { count += 1 }
        body.close if body.respond_to?(:close)
        count
      end
      sleep 0.3
      client.close
      expect(request.join(20)&.value).to be < 1000
      expect(llm.finished).to eq(1)
      expect(get(server, "/metrics").text).to include("candle_cancelled_total 1", "candle_running 0")
    end
  end

  it "ends a generation when writing fails" do
    server, llm = ServedModels.scripted("word " * 200, pause: 0.02)
    body = JSON.generate(model: "llm", stream: true, messages: [{ role: "user", content: "x" }])
    _, _, stream = server.call("REQUEST_METHOD" => "POST", "PATH_INFO" => "/v1/chat/completions",
                               "rack.input" => StringIO.new(body))
    broken = proc { raise Errno::EPIPE }
    expect { stream.each(&broken) }.to raise_error(Errno::EPIPE)
    stream.close
    expect(llm.finished).to eq(1)
    expect(get(server, "/metrics").text).to include("candle_cancelled_total 1", "candle_running 0")
  end

  it "lets running answers end when it shuts down" do
    server, = ServedModels.scripted("a b c", pause: 0.1)
    body = { model: "llm", messages: [{ role: "user", content: "x" }] }
    running = Thread.new { post(server, "/v1/chat/completions", body) }
    sleep 0.01 until get(server, "/metrics").text.include?("candle_running 1")
    server.close
    expect(post(server, "/v1/chat/completions", body).status).to eq(503)
    expect(get(server, "/ready").status).to eq(503)
    expect(running.value.status).to eq(200)
  end

  it "answers requests whose headers are not text" do
    names = %w[HTTP_AUTHORIZATION HTTP_TRACEPARENT HTTP_X_REQUEST_ID HTTP_ORIGIN HTTP_HOST CONTENT_TYPE PATH_INFO]
    names.each do |name|
      answer = post(server, "/classify_image", {}, name => "a\xFF")
      expect([name, answer.status]).to match([name, be_between(400, 499)])
    end
  end

  it "tells nothing of the machine in an error" do
    message = "cannot read /srv/models/secret/model.safetensors: gone (see https://example.org/help), or ./a/b"
    expect(described_class::Problem.without_paths(message))
      .to eq("cannot read model.safetensors: gone (see https://example.org/help), or b")
    broken = Class.new(ServedModels::Scripted) { def complete(*, **) = raise("at /srv/secret") }.new("x")
    server = described_class.new(models: { "llm" => { source: broken, kind: :llm } })
    answer = nil
    log = logged { answer = post(server, "/api/chat", { model: "llm", messages: [{ role: "user", content: "x" }] }) }
    expect(answer).to have_attributes(status: 500, json: { "error" => "the server failed; its log says why" })
    expect(log).to include("RuntimeError: at /srv/secret")
    late = described_class.new(models: { "e" => "/srv/nowhere/model" }, lazy: true)
    expect(post(late, "/embed", { inputs: "a" }).text).not_to include("/srv")
  end

  it "names requests, passes traces on, and logs both" do
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    answer = nil
    log = logged { answer = get(server, "/info", "HTTP_X_REQUEST_ID" => "r-1", "HTTP_TRACEPARENT" => trace) }
    expect(answer.headers).to include("x-request-id" => "r-1", "traceparent" => trace)
    expect(JSON.parse(log)).to include("request_id" => "r-1", "trace_id" => "0af7651916cd43dd8448eb211c80319c",
                                       "path" => "/info", "status" => 200, "ms" => Float)
    expect(get(server, "/info", "HTTP_X_REQUEST_ID" => "a\nb").headers["x-request-id"]).to match(/\A[\h-]{36}\z/)
    expect(get(server, "/info", "HTTP_X_CORRELATION_ID" => "c-1").headers).to include("x-correlation-id" => "c-1")
  end

  it "counts in Prometheus' format, and what models count themselves" do
    counting = Class.new(ServedModels::Scripted) { def stats = { pages_used: 7, token_ms: { p50: 1 } } }.new("a b c")
    server = described_class.new(models: { "llm" => { source: counting, kind: :llm } })
    post(server, "/api/chat", { model: "llm", messages: [{ role: "user", content: "x" }] })
    text = get(server, "/metrics").text
    expect(text).to include('candle_tokens_total{model="llm",direction="out"} 3', "process_resident_memory_bytes ",
                            'candle_model_pages_used{model="llm"} 7', 'candle_first_token_seconds_count{model="llm"} 1',
                            'candle_between_tokens_seconds_count{model="llm"} 2',
                            'candle_requests_total{method="POST",route="/api/chat",status="200"} 1')
    expect(text).not_to include("token_ms")
    expect(get(self.server, "/metrics").text).to include("candle_model_pages_free")
  end

  it "exports the histograms of models" do
    model = Candle::EmbeddingModel.from_pretrained(TinyModels.path("bert-sentence"), device: "cpu")
    server = described_class.new(models: { "e" => { source: model, kind: :embedding } })
    2.times { post(server, "/embed", { inputs: "the quick brown fox" }) }
    text = get(server, "/metrics").text
    expect(text).to include("# TYPE candle_model_queue_ms histogram", 'candle_model_waiting{model="e"} 0')
    batches = model.stats[:batches]
    expect(batches).to be >= 2
    expect(text).to include("candle_model_batches{model=\"e\"} #{batches}",
                            "candle_model_batch_size_bucket{model=\"e\",le=\"1.0\"} #{batches}",
                            "candle_model_batch_size_bucket{model=\"e\",le=\"+Inf\"} #{batches}",
                            "candle_model_forward_ms_count{model=\"e\"} #{batches}")
  end

  it "does not let strangers make up names of metrics" do
    ask(server, "BREW", "/v1/models")
    get(server, "/pot/#{rand}")
    text = get(server, "/metrics").text
    expect(text).to include('method="other"', 'route="other"')
    expect(text).not_to match(/BREW|pot/)
  end

  it "says what to install when Puma is missing" do
    launcher = described_class::Launcher.new(server)
    allow(launcher).to receive(:require).with("puma").and_raise(LoadError)
    expect { launcher.run }.to raise_error(Candle::Error, /gem install puma/)
  end

  it "has a page that needs nothing from elsewhere" do
    page = get(server, "/")
    expect(page.headers).to include("content-type" => "text/html; charset=utf-8", "content-security-policy" => /'none'/)
    expect(page.text).not_to match(%r{(src|href)=|https?://|@import|url\(})
    expect(page.text).to include("prefers-color-scheme: dark", 'name="viewport"', 'role="tablist"')
    mounted = ask(server, "GET", "", nil, "SCRIPT_NAME" => "/ai")
    expect(mounted).to have_attributes(status: 302, headers: hash_including("location" => "/ai/"))
    expect(ask(server, "GET", "/v1/models", nil, "SCRIPT_NAME" => "/ai").status).to eq(200)
  end

  it "is loaded on use" do
    loaded = "%r{candle/(server|worker|cli)[./]|/(rack|puma|thor)[./]}"
    output, = run_ruby("print $LOADED_FEATURES.grep(#{loaded}).grep_v(/bundler/).size")
    expect(output).to eq("0")
  end
end
