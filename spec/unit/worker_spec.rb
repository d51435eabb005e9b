# frozen_string_literal: true

require "socket"

RSpec.describe Candle::Worker do
  let(:llm) { Candle::LLM.from_pretrained(TinyModels.path("decoders/llama")) }
  let(:worker) { described_class.new(worker_id: "w1", model: llm) }

  def job(**fields) = { job_id: "j1", prompt: "the dog", max_tokens: 6, temperature: 0 }.merge(fields)

  it "runs a job and tells of each token" do
    answer = post(worker, "/execute", job, "HTTP_X_CORRELATION_ID" => "c-7")
    expect(answer.headers).to include("content-type" => "text/event-stream", "x-correlation-id" => "c-7")
    events = answer.named_events
    expect(events.first).to match(["started", hash_including("job_id" => "j1")])
    tokens = events.filter_map { |name, data| data if name == "token" }
    expect(tokens.map { |token| token["i"] }).to eq((0...tokens.size).to_a)
    expect(tokens.map { |token| token["t"] }.join).to eq(llm.generate("the dog", max_length: 6, temperature: 0))
    expect(events[-2]).to match(["metrics", { "tokens_per_sec" => be > 0, "vram_bytes" => worker.vram_bytes }])
    expect(events.last).to match(["end", { "tokens_out" => 6, "decode_time_ms" => Integer, "stop_reason" => "length" }])
  end

  it "takes every field of the protocol" do
    all = job(seed: 3, top_p: 0.9, top_k: 5, min_p: 0.01, repetition_penalty: 1.1, stop: ["zz"], temperature: 1)
    one, other = Array.new(2) { post(worker, "/execute", all).named_events.select { |name, _| name == "token" } }
    expect(one).to eq(other)
    expect(post(worker, "/execute", job(top_k: 0)).status).to eq(200)
  end

  it "answers 400 with one error per field" do
    bad = { prompt: "x" * 32_769, max_tokens: 2049, temperature: 3, stop: %w[a b c d e], top_p: "x" }
    answer = post(worker, "/execute", bad)
    expect(answer.status).to eq(400)
    expect(answer.json["error"]["code"]).to eq("INVALID_REQUEST")
    expect(answer.json["errors"].map do |error|
             error["field"]
           end).to eq(%w[job_id prompt max_tokens temperature top_p stop])
    expect(answer.json["errors"].first).to eq("field" => "job_id", "message" => "is missing")
    expect(post(worker, "/execute", "{").json["error"]["code"]).to eq("INVALID_REQUEST")
  end

  it "tells of failures by an event, in the protocol's words" do
    code = ->(**fields) { post(worker, "/execute", job(**fields)).named_events.last }
    expect(code.call(prompt: "long " * 500)).to match(["error",
                                                       { "code" => "INVALID_REQUEST", "message" => /context/ }])
    allow(Candle.logger).to receive(:error)
    { Candle::OutOfMemoryError => "VRAM_OOM", Candle::InterruptedError => "CANCELLED",
      Candle::GenerationError => "INFERENCE_FAILED" }.each do |error, name|
      allow(llm).to receive(:complete).and_raise(error, "at /srv/x")
      expect(code.call).to match(["error", { "code" => name, "message" => satisfy { |text| !text.include?("/srv") } }])
    end
  end

  it "ends a job whose time is up or whose client went away" do
    scripted = ServedModels::Scripted.new("word " * 2000, pause: 0.02)
    scripted.define_singleton_method(:clear_cache) { nil }
    scripted.define_singleton_method(:model_info) { { weight_bytes: 0 } }
    slow = described_class.new(worker_id: "w", model: scripted, seconds: 0.3)
    expect(post(slow, "/execute",
                job(max_tokens: 2000)).named_events.last).to match(["error", hash_including("code" => "TIMEOUT")])
    patient = described_class.new(worker_id: "w", model: scripted)
    client, socket = Socket.pair(:UNIX, :STREAM)
    runner = Thread.new { post(patient, "/execute", job(max_tokens: 2000), "puma.socket" => socket) }
    sleep 0.01 until get(patient, "/metrics").text.include?("candle_running 1")
    sleep 0.2
    client.close
    expect(runner.join(20)&.value&.named_events&.last&.first).to eq("token")
    expect(scripted.finished).to eq(2)
    expect(get(patient, "/metrics").text).to include("candle_cancelled_total 1", "candle_running 0")
  end

  it "tells its health, its capabilities and its numbers" do
    expect(get(worker, "/health").json).to eq("status" => "ok", "worker_id" => "w1")
    expect(get(worker, "/ready").json).to eq("ready" => true)
    expect(get(worker, "/capabilities").json).to eq("capabilities" => ["cpu"], "device" => "cpu", "backend" => "candle")
    expect(get(worker, "/metrics").text).to include("candle_vram_bytes #{worker.vram_bytes}")
    expect(worker.vram_bytes).to eq(llm.model_info[:weight_bytes]).and be_positive
    expect(get(worker, "/other").status).to eq(404)
    worker.close
    expect(get(worker, "/ready").status).to eq(503)
    expect(post(worker, "/execute", job).json["error"]["code"]).to eq("CANCELLED")
  end

  it "needs the token" do
    guarded = described_class.new(worker_id: "w", model: llm, token: "t")
    expect(post(guarded, "/execute", job).status).to eq(401)
    expect(post(guarded, "/execute", job, "HTTP_AUTHORIZATION" => "Bearer t").status).to eq(200)
    expect(post(worker, "/execute", job, "REMOTE_ADDR" => "10.0.0.1").status).to eq(403)
  end

  describe "the callback" do
    # Answers one request after the other with the given statuses, and keeps what it was told.
    def listener(*statuses)
      server = TCPServer.new("127.0.0.1", 0)
      told = []
      thread = Thread.new do
        statuses.each do |status|
          client = server.accept
          head = client.readpartial(4096) until head.to_s.include?("\r\n\r\n")
          length = head[/content-length: (\d+)/i, 1].to_i
          body = head.split("\r\n\r\n", 2).last
          body << client.readpartial(4096) while body.bytesize < length
          told << JSON.parse(body)
          client.write("HTTP/1.1 #{status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
          client.close
        end
      end
      yield "http://127.0.0.1:#{server.addr[1]}/ready"
      thread.join(2)
      told
    ensure
      server.close
    end

    it "tells the orchestrator, and again when it fails" do
      told = listener(500, 200) { |url| described_class::Callback.new(url, pauses: [0.01]).post({ worker_id: "w" }) }
      expect(told).to eq([{ "worker_id" => "w" }] * 2)
      said = listener(200) { |url| expect(worker.announce(url, "http://h:1")).to be(true) }
      expect(said).to eq([{ "worker_id" => "w1", "vram_bytes" => worker.vram_bytes, "uri" => "http://h:1" }])
    end

    it "tells nobody where the address says so, and gives up with a reason" do
      expect(%w[none http://skip/x http://callback.invalid/].map { |url| worker.announce(url, "u") }).to all(be(false))
      expect { worker.announce("ftp://x", "u") }.to raise_error(ArgumentError, /http/)
      closed = TCPServer.new("127.0.0.1", 0).then { |server| server.addr[1].tap { server.close } }
      callback = described_class::Callback.new("http://127.0.0.1:#{closed}/", pauses: [0.01])
      expect { callback.post({}) }.to raise_error(Candle::Error, /does not answer/)
    end
  end
end
