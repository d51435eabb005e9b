# frozen_string_literal: true

RSpec.describe Candle::Server do
  sources = { "vlm" => "llava", "clip" => "clip", "looks" => "dinov2", "labels" => "vit-classifier",
              "llm" => "decoders/llama", "colbert" => "colbert", "sparse" => "splade" }
  before(:all) do
    models = sources.transform_values { |name| TinyModels.path(name) }
    @server = described_class.new(models: models, device: "cpu", max_tokens: 64)
  end

  let(:server) { @server }
  let(:photo) { File.binread(path("photo.png")) }
  let(:flower) { File.binread(path("flower.png")) }

  def path(name) = File.expand_path("../../fixtures/images/#{name}", __dir__)
  def url(bytes) = "data:image/png;base64,#{[bytes].pack("m0")}"
  def model(name) = server.models.fetch(name).model

  def asked(*images, text: "what is it?")
    [{ role: "user", content: [*images.map { |image| { type: "image_url", image_url: { url: image } } },
                               { type: "text", text: text }] }]
  end

  def chat(messages, **body)
    post(server, "/v1/chat/completions",
         { model: "vlm", messages: messages, max_tokens: 6, temperature: 0 }.merge(body))
  end

  it "finds what its models are for from their files" do
    kinds = %i[vlm clip image_embedding image_classifier llm late_interaction sparse]
    expect(server.models.map(&:kind)).to eq(kinds)
    expect(get(server, "/metrics").text).to match(/candle_model_tokens_out{model="vlm"}/)
  end

  describe "a conversation with images" do
    let(:direct) { model("vlm").ask(path("photo.png"), "what is it?", max_length: 6) }

    it "is answered like the model itself, at once and in a stream" do
      answer = chat(asked(url(photo)), n: 2, seed: 1).json
      expect(answer["choices"].map { |choice| choice["message"]["content"] }).to eq([direct, direct])
      expect(answer["usage"]["prompt_tokens"]).to be > 16
      streamed = chat(asked(url(photo)), stream: true).events[0...-1]
      expect(streamed.filter_map { |chunk| chunk["choices"].first["delta"]["content"] }.join).to eq(direct)
      both = chat(asked(url(photo), url(flower))).json["choices"].first["message"]["content"]
      expect(both).to eq(model("vlm").ask([path("photo.png"), path("flower.png")], "what is it?", max_length: 6))
    end

    it "may have none, or go on without" do
      text = chat([{ role: "user", content: "hi" }]).json["choices"].first["message"]["content"]
      expect(text).to eq(model("vlm").chat([{ role: "user", content: [{ type: "text", text: "hi" }] }], max_length: 6))
      more = [*asked(url(photo)), { role: "assistant", content: direct }, { role: "user", content: "and?" }]
      expect(chat(more).status).to eq(200)
      prompt = { model: "vlm", prompt: "the dog", max_tokens: 4, temperature: 0 }
      expect(post(server, "/v1/completions", prompt).json["choices"].first["text"])
        .to eq(model("vlm").llm.generate("the dog", max_length: 4, temperature: 0))
    end

    it "is asked for as Responses and as Ollama do" do
      parts = [{ type: "input_image", image_url: url(photo) }, { type: "input_text", text: "what is it?" }]
      told = post(server, "/v1/responses", { model: "vlm", input: [{ role: "user", content: parts }], temperature: 0,
                                             max_output_tokens: 6 }).json
      expect(told["output"].first["content"].first["text"]).to eq(direct)
      options = { temperature: 0, num_predict: 6 }
      message = { role: "user", content: "what is it?", images: [[photo].pack("m0")] }
      lines = post(server, "/api/chat", { model: "vlm", messages: [message], options: options }).lines
      expect(lines.map { |line| line["message"]["content"] }.join).to eq(direct)
      body = { model: "vlm", prompt: "what is it?", images: [[photo].pack("m0")], options: options, stream: false }
      expect(post(server, "/api/generate", body).json["response"]).to eq(direct)
      expect(post(server, "/api/generate", body.merge(raw: true)).json["error"]).to match(/can't have images/)
      expect(post(server, "/api/show", { model: "vlm" }).json["capabilities"]).to eq(%w[completion vision])
    end

    it "is answered by every family that sees" do
      names = %w[llava-next qwen2-vl qwen2.5-vl smolvlm gemma3-vision]
      families = described_class.new(models: names.to_h { |name| [name, TinyModels.path(name)] }, device: "cpu")
      talk = [{ role: "system", content: "Be brief." }, *asked(url(photo)), { role: "assistant", content: "a dog" },
              { role: "user", content: "sure?" }]
      answers = names.map do |name|
        post(families, "/v1/chat/completions", { model: name, messages: talk, max_tokens: 3, temperature: 0 })
      end
      expect(answers.map { |answer| answer.json.dig("usage", "completion_tokens") }).to all(eq(3))
    end

    it "follows a schema" do
      schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"] }
      held = chat(asked(url(photo)), max_tokens: 30,
                                     response_format: { type: "json_schema", json_schema: { schema: schema } })
      expect(JSON.parse(held.json["choices"].first["message"]["content"]).keys).to eq(["ok"])
    end

    it "fetches nothing and opens nothing" do
      ["https://example.org/x.png", "file:///etc/passwd", path("photo.png"), "data:text/plain,x"].each do |address|
        refused = chat(asked(address))
        expect(refused).to have_attributes(status: 400)
        expect(refused.json["error"]["message"]).to match(/must be a data URL.*fetches nothing/)
      end
      expect(chat(asked("data:image/png;base64,***")).json["error"]["message"]).to match(/not valid base64/)
      # The bytes of a picture are never the path of one.
      named = chat(asked(url(path("photo.png"))))
      expect([named.status, named.text]).to match([400, /image/])
      expect(named.text).not_to include(path("photo.png"))
      expect(chat(asked("")).status).to eq(400)
    end

    it "is for models that see, within limits, and without tools" do
      expect(chat(asked(url(photo)), model: "llm").json["error"]["message"])
        .to match(/image_url, and the model takes text only/)
      expect(chat(asked(*([url(photo)] * 17))).json["error"]["message"]).to match(/17 images, and the server takes 16/)
      tools = [{ type: "function", function: { name: "f", parameters: { type: "object" } } }]
      expect(chat(asked(url(photo)), tools: tools).json["error"]).to include("param" => "tools")
      expect(chat([{ role: "system", content: asked(url(photo)).first[:content] }]).status).to eq(400)
    end
  end

  describe "vectors of texts and images" do
    let(:clip) { model("clip") }

    def embed(input, **body) = post(server, "/v1/embeddings", { model: "clip", input: input }.merge(body))

    it "come in the order of the input" do
      text = clip.embed_text("a dog")
      image = clip.embed_image(path("photo.png"))
      [[url(photo), "a dog"], [{ image: url(photo) }, { text: "a dog" }], [{ image: [photo].pack("m0") }, "a dog"]]
        .each do |input|
        answer = embed(input).json
        expect(answer["data"].map { |item| item["embedding"] }).to be_near([image, text], 1e-6)
        expect(answer["usage"]["total_tokens"]).to eq(clip.tokenizer.encode("a dog").size)
      end
      packed = embed(url(photo), encoding_format: "base64").json["data"].first["embedding"]
      expect(packed.unpack1("m0").unpack("e*")).to be_near(image, 1e-6)
      expect(post(server, "/embed", { inputs: ["a dog", url(photo)], model: "clip" }).json)
        .to be_near([text, image], 1e-6)
      expect(post(server, "/api/embed", { model: "clip", input: "a dog" }).json["embeddings"]).to be_near([text], 1e-6)
    end

    it "come from models of images alone" do
      found = embed([url(photo)], model: "looks").json["data"].first["embedding"]
      expect(found).to be_near(model("looks").embed(path("photo.png")), 1e-6)
      expect(embed("a dog", model: "looks").json["error"]["message"]).to match(/reads images only/)
    end

    it "are plain, weighted or one per token at the plain service" do
      body = { model: "clip", texts: ["a dog"], images: [url(photo)] }
      answer = post(server, "/api/v1/embed", body).json
      expect(answer["embeddings"]).to be_near([clip.embed_text("a dog"), clip.embed_image(path("photo.png"))], 1e-6)
      expect(answer).to include("dimension" => 24, "usage" => hash_including("duration_ms" => Float))
      looks = post(server, "/api/v1/embed", { model: "looks", images: [url(photo)], normalize: false }).json
      expect(looks["embeddings"]).to be_near([model("looks").embed(path("photo.png"), normalize: false)], 1e-5)
      sparse = post(server, "/api/v1/embed", { model: "sparse", texts: ["a dog"] }).json["embeddings"]
      expect(sparse).to eq(JSON.parse(JSON.generate(model("sparse").embed(["a dog"], as: :arrays))))
      query = post(server, "/api/v1/embed", { model: "colbert", texts: ["a dog"], task: "query" }).json["embeddings"]
      expect(query.first).to be_near(model("colbert").embed_query("a dog").to_a, 1e-6)
      document = post(server, "/api/v1/embed", { model: "colbert", texts: ["a dog"] }).json["embeddings"]
      expect(document.first).to be_near(model("colbert").embed_document("a dog").to_a, 1e-6)
    end

    it "are refused where there are none" do
      expect(embed("a", dimensions: 4).json["error"]).to include("param" => "dimensions")
      expect(embed([1, 2]).status).to eq(400)
      expect(embed([{ image: "http://x/y.png" }]).json["error"]["message"]).to match(/fetches nothing/)
      expect(embed([url("not an image")]).status).to eq(400)
      expect(post(server, "/api/v1/embed", { model: "clip", texts: ["a"], pooling: "cls" }).json)
        .to eq("error" => "pooling is not for models of the kind clip", "code" => "invalid_request")
      expect(post(server, "/api/v1/embed", { model: "sparse", texts: ["a"], images: [] }).status).to eq(400)
    end
  end

  describe "labels of images" do
    def classify(inputs, **body) = post(server, "/classify_image", { inputs: inputs }.merge(body))

    def as_json(value) = JSON.parse(JSON.generate(value))

    it "are the model's own, or those that are given" do
      own = as_json(model("labels").classify(path("photo.png")))
      expect(classify(url(photo)).json).to eq(own)
      expect(classify([[photo].pack("m0")], parameters: { top_k: 1 }).json).to eq([own.first(1)])
      given = { candidate_labels: %w[dog flower], hypothesis_template: "this is {}" }
      expect(classify(url(photo), parameters: given).json)
        .to eq(as_json(model("clip").classify_image(path("photo.png"), %w[dog flower], template: "this is {}")))
    end

    it "come for an image as the body" do
      raw = ask(server, "POST", "/classify_image", photo, "CONTENT_TYPE" => "image/png")
      expect(raw.json).to eq(as_json(model("labels").classify(path("photo.png"))))
      expect(ask(server, "POST", "/classify_image", photo).status).to eq(200)
      expect(ask(server, "POST", "/describe", photo).json).to match([{ "generated_text" => String }])
      expect(ask(server, "POST", "/", photo, "CONTENT_TYPE" => "image/png").json.first).to have_key("generated_text")
    end

    it "are refused without an image or labels" do
      expect(classify("http://x/y.png").json["error"]).to match(/fetches nothing/)
      expect(classify(url(photo), model: "clip").json["error"]).to match(/candidate_labels must be/)
      expect(classify(url(photo), model: "clip", parameters: { candidate_labels: [] }).json["error"]).to match(/labels/)
      expect(post(server, "/tokenize", { inputs: "a", model: "labels" }).json["error"]).to match(/does not read texts/)
    end
  end

  it "shows every model to Ollama's and TEI's clients" do
    expect(get(server, "/api/tags").json["models"].map { |model| model["name"] }).to eq(sources.keys)
    expect(sources.keys.map { |name| post(server, "/api/show", { model: name }).status }).to all(eq(200))
    expect(get(server, "/info").json["models"].map { |model| model["loaded"] }).to all(be(true))
  end
end
