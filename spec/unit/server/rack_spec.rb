# frozen_string_literal: true

require "rack"

RSpec.describe "Candle::Server as a Rack application" do
  let(:client) { Rack::MockRequest.new(Rack::Lint.new(ServedModels.server)) }

  def lint(verb, path, body = nil)
    options = { "REMOTE_ADDR" => "127.0.0.1", "HTTP_HOST" => "localhost" }
    options = options.merge(input: JSON.generate(body), "CONTENT_TYPE" => "application/json") if body
    client.request(verb, path, options)
  end

  it "keeps to Rack's rules in answers, streams and errors" do
    messages = [{ role: "user", content: "hi" }]
    expect(lint("GET", "/").status).to eq(200)
    expect(lint("HEAD", "/health").status).to eq(200)
    expect(lint("GET", "/metrics").status).to eq(200)
    expect(lint("POST", "/embed", { inputs: "a" }).status).to eq(200)
    expect(lint("POST", "/v1/chat/completions",
                { messages: messages, max_tokens: 3, stream: true }).body).to end_with("[DONE]\n\n")
    expect(lint("POST", "/api/chat",
                { model: "llm", messages: messages, options: { num_predict: 3 } }).status).to eq(200)
    expect(lint("POST", "/embed", { inputs: 7 }).status).to eq(413)
    expect(lint("GET", "/nowhere").status).to eq(404)
    expect(lint("OPTIONS", "/embed").status).to eq(403)
  end

  it "is mounted below a path" do
    mounted = Rack::MockRequest.new(Rack::URLMap.new("/ai" => ServedModels.server))
    local = { "REMOTE_ADDR" => "127.0.0.1", "HTTP_HOST" => "localhost" }
    expect(mounted.get("/ai", local)["location"]).to eq("/ai/")
    expect(mounted.get("/ai/v1/models", local).status).to eq(200)
  end
end
