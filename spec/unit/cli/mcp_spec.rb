# frozen_string_literal: true

require "open3"
require "tmpdir"

RSpec.describe "red-candle mcp" do
  exe = File.expand_path("../../../exe/red-candle", __dir__)
  embedder = TinyModels.path("bert-sentence")
  models = ["--embed", embedder, "--rerank", TinyModels.path("bert-reranker"), "--ner", TinyModels.path("bert-token"),
            "--chat", TinyModels.path("gguf-decoders/llama")]
  command = [RbConfig.ruby, "-I#{ChildRuby::LIB}", exe, "mcp"]

  define_method(:with_server) do |*options, &block|
    Candle::MCP::Client.stdio(*command, *options, "--device", "cpu", &block)
  end

  it "offers the tools whose models are named" do
    with_server(*models) { |client| expect(client.tools.map(&:name)).to eq(%w[embed rerank extract chat]) }
    with_server("--rerank", "missing") do |client|
      expect(client.tools.map(&:name)).to eq(%w[rerank])
      expect { client.call_tool("rerank", { query: "a", documents: ["b"] }) }
        .to raise_error(Candle::MCPToolError, /missing/)
      expect(client.ping).to be(true)
    end
  end

  it "computes what the models compute" do
    with_server(*models) do |client|
      texts = ["the quick fox", "a dog"]
      model = Candle::EmbeddingModel.from_pretrained(embedder, device: "cpu")
      expect(client.call_tool("embed", { texts: texts })).to eq("embeddings" => model.embed(texts))

      reranker = Candle::Reranker.from_pretrained(TinyModels.path("bert-reranker"), device: "cpu")
      best = reranker.rerank("fox", texts, top_k: 1).first
      expect(client.call_tool("rerank", { query: "fox", documents: texts, top_k: 1 }))
        .to eq("results" => [{ "index" => best[:index], "score" => best[:score], "text" => best[:text] }])

      ner = Candle::NER.from_pretrained(TinyModels.path("bert-token"), device: "cpu")
      text = "the lazy dog jumps over the quick brown fox"
      all = ner.extract_entities(text, confidence_threshold: 0, aggregation: :first)
      expected = all.map { |entity| entity.slice(:text, :label, :start, :end, :confidence).transform_keys(&:to_s) }
      expect(expected.map { |entity| entity["label"] }).to eq(%w[PER LOC PER])
      expect(client.call_tool("extract", { text: text, threshold: 0 })).to eq("entities" => expected)
      expect(client.call_tool("extract", { text: text, threshold: 0, labels: ["loc"] }))
        .to eq("entities" => [expected[1]])

      llm = Candle::LLM.from_pretrained(TinyModels.path("gguf-decoders/llama"), device: "cpu")
      messages = [{ role: "user", content: "hi" }]
      expect(client.call_tool("chat", { messages: messages, max_tokens: 8, temperature: 0 }))
        .to eq(llm.chat(messages, max_length: 8, temperature: 0))
    end
  end

  it "transcribes files and bytes" do
    path = File.expand_path("../../fixtures/audio/tones.wav", __dir__)
    with_server("--transcribe", TinyModels.path("speech/whisper")) do |client|
      expect(client.tools.map(&:name)).to eq(%w[transcribe])
      model = Candle::Transcriber.from_pretrained(TinyModels.path("speech/whisper"), device: "cpu")
      wanted = model.transcribe(path, language: "en")
      found = client.call_tool("transcribe", { path: path, language: "en" })
      expect(found.values_at("text", "language")).to eq([wanted.text.strip, "en"])
      expect(found["segments"].map { |segment| segment["text"] }).to eq(wanted.segments.map { |one| one[:text] })
      bytes = [File.binread(path)].pack("m0")
      expect(client.call_tool("transcribe", { audio: bytes, language: "en" })).to eq(found)
      [{}, { path: path, audio: bytes }, { audio: "?" }, { path: "missing.wav" }].each do |arguments|
        expect { client.call_tool("transcribe", arguments) }.to raise_error(Candle::MCPToolError)
      end
    end
  end

  it "answers invalid arguments as errors of the tool, and unknown tools as errors of the protocol" do
    with_server(*models) do |client|
      [["embed", {}], ["embed", { texts: "x" }], ["embed", { texts: ["x"], other: 1 }], ["rerank", { query: "x" }],
       ["embed", { texts: ["x"], prompt_name: "none" }], ["extract", { text: "x", threshold: 2 }],
       ["chat", { messages: [{ role: "judge", content: "x" }] }], ["chat", { messages: [] }]].each do |name, arguments|
        expect { client.call_tool(name, arguments) }.to raise_error(Candle::MCPToolError), name
      end
      expect { client.call_tool("search") }
        .to raise_error(an_instance_of(Candle::MCPError).and(having_attributes(code: -32_602)))
    end
  end

  describe "search" do
    texts = ["the quick fox", "hello world", "the lazy dog"]

    around { |example| Dir.mktmpdir { |directory| Dir.chdir(directory) { example.run } } }

    before do
      @model = Candle::EmbeddingModel.from_pretrained(embedder, device: "cpu")
      @numbers = Candle::Index.new(dimension: @model.dimension).add_all((1..3).zip(@model.embed(texts)))
      @numbers.save("numbers.index")
      File.write("texts.txt", "#{texts.join("\n")}\n")
      Candle::Index.new(dimension: @model.dimension).add_all(%w[a b c].zip(@model.embed(texts))).save("names.index")
      File.write("texts.jsonl", %w[a b].zip(texts).map { |id, text| "#{JSON.generate(id: id, text: text)}\n" }.join)
    end

    it "finds texts of a Candle::Index" do
      with_server("--embed", embedder, "--index", "numbers.index", "--texts", "texts.txt") do |client|
        # The model has a prompt for queries.
        expected = @numbers.search(@model.embed("the lazy dog", prompt_name: "query"), top_k: 2)
        found = client.call_tool("search", { query: "the lazy dog", top_k: 2 })["results"]
        expect(found.map { |entry| entry["id"] }).to eq(expected.map { |entry| entry[:id] })
        expect(found.map { |entry| entry["text"] }).to eq(expected.map { |entry| texts[entry[:id] - 1] })
        expect(found.first["score"]).to be_within(1e-5).of(expected.first[:score])
        expect(client.call_tool("search", { query: "fox" })["results"].size).to eq(3)
      end
      with_server("--embed", embedder, "--index", "names.index", "--texts", "texts.jsonl") do |client|
        found = client.call_tool("search", { query: "hello world" })["results"]
        expect(found.find { |entry| entry["id"] == "b" }).to include("text" => "hello world")
        expect(found.find { |entry| entry["id"] == "c" }).not_to have_key("text")
      end
    end

    it "finds passages of files that red-candle search has indexed" do
      search = [RbConfig.ruby, "-I#{ChildRuby::LIB}", exe, "search", "texts.txt", "--query", "x", "--model", embedder]
      output, status = Open3.capture2e(*search)
      expect(status).to be_success, output
      with_server("--embed", embedder, "--index", ".red-candle.index") do |client|
        found = client.call_tool("search", { query: "fox", top_k: 1 })["results"].first
        expect(found).to include("file" => "texts.txt", "line" => 1, "text" => /quick fox/)
      end
      with_server("--embed", TinyModels.path("bert-sentence-dense"), "--index", ".red-candle.index") do |client|
        expect do
          client.call_tool("search", { query: "fox" })
        end.to raise_error(Candle::MCPToolError, /has vectors of the/)
      end
    end

    it "says what is wrong with the command line" do
      { ["--index", "numbers.index"] => [2, /mcp needs a model/], [] => [2, /mcp needs a model/],
        ["--rerank", "x", "--index", "numbers.index"] => [2, /--index needs --embed/],
        ["--embed", "x", "--texts", "texts.txt"] => [2, /--texts needs --index/],
        ["--embed", "x", "--index", "none"] => [1, /there is no file none/] }.each do |options, (status, message)|
        _, errors, process = Open3.capture3(*command, *options, stdin_data: "")
        expect([process.exitstatus, errors]).to match([status, message])
      end
    end
  end

  it "writes nothing but the protocol to standard output" do
    request = %({"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"embed","arguments":{"texts":["x"]}}}\n)
    noise = "module Noise; def embed(*, **) = (puts('noise'); system('echo more noise'); super); end; " \
            "Candle::EmbeddingModel.prepend(Noise); Candle::CLI.run(['mcp', '--embed', #{embedder.inspect}])"
    output, errors, status = Open3.capture3(RbConfig.ruby, "-I#{ChildRuby::LIB}", "-rcandle/cli", "-e", noise,
                                            stdin_data: request)
    expect(status).to be_success
    expect(output.lines.map { |line| JSON.parse(line)["id"] }).to eq([1])
    expect(errors).to include("noise", "more noise")
  end
end
