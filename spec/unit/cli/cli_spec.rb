# frozen_string_literal: true

require "delegate"
require "open3"
require "pty"
require "stringio"
require "timeout"
require "tmpdir"

RSpec.describe Candle::CLI do
  embedder = TinyModels.path("bert-sentence")
  llm = TinyModels.path("gguf-decoders/llama")

  # Runs a command line in this process.
  def cli(*arguments, input: "")
    before = [$stdin, $stdout, $stderr]
    $stdin = StringIO.new(input)
    $stdout = StringIO.new
    $stderr = StringIO.new
    status = described_class.run(arguments)
    [status, $stdout.string, $stderr.string]
  ensure
    $stdin, $stdout, $stderr = before
  end

  around { |example| Dir.mktmpdir { |directory| Dir.chdir(directory) { example.run } } }

  def json_lines(text) = text.lines.map { |line| JSON.parse(line) }

  it "transcribes audio files" do
    audio = File.expand_path("../../fixtures/audio/tones.wav", __dir__)
    model = TinyModels.path("speech/whisper")
    transcriber = Candle::Transcriber.from_pretrained(model, device: "cpu")
    result = transcriber.transcribe(audio, language: "en")
    timed = transcriber.transcribe(audio, language: "en", timestamp_tokens: true)
    command = ["transcribe", audio, "-m", model, "--language", "en", "--device", "cpu"]
    expect(cli(*command)[0, 2]).to eq([0, "#{result.text}\n"])
    expect(cli(*command, "--format", "srt")[1]).to eq(timed.to_srt)
    expect(cli(*command, "--format", "vtt")[1]).to eq(timed.to_vtt)
    expect(JSON.parse(cli(*command, "--format", "json", "--words")[1])["token_ids"]).to eq(result.token_ids)
    cli(*command, "--format", "txt", "-o", "out.txt")
    expect(File.read("out.txt")).to eq("#{result.text.strip}\n")
    expect(cli(*command, "--vocabulary", "hello", "world").fetch(1).split.uniq - %w[hello world]).to be_empty
    long = File.expand_path("../../fixtures/audio/long.flac", __dir__)
    texts = [audio, long].to_h { |file| [file, transcriber.transcribe(file, language: "en", num_beams: 1).text.strip] }
    texts = [texts[audio], *([texts[long], texts[audio]] * 5)]
    many = ["transcribe", audio, *([long, audio] * 5), *command.drop(2)]
    expect(cli(*many)[0, 2]).to eq([0, texts.map { |text| "#{text}\n" }.join])
    expect(json_lines(cli(*many, "--format", "json")[1]).map { |line| line["text"].strip }).to eq(texts)
    status, output, problem = cli("transcribe", audio, __FILE__, *command.drop(2))
    expect([status, output]).to eq([1, "#{texts.first}\n"])
    expect(problem).to include(File.basename(__FILE__)).or include("audio")
    expect(cli("transcribe", "-m", model)).to match([2, "", /at least one audio file/])
    expect(cli("transcribe", "none.wav", "-m", model)).to match([1, "", /none.wav/])
  end

  it "finds things in images" do
    photo = File.expand_path("../../fixtures/images/photo.png", __dir__)
    model = TinyModels.path("yolos")
    found = Candle::ObjectDetector.from_pretrained(model, device: "cpu").detect(photo, threshold: 0.2)
    command = ["detect", photo, "-m", model, "--threshold", "0.2", "--device", "cpu"]
    status, output, = cli(*command)
    expect([status, output.lines.size]).to eq([0, found.size])
    expect(output).to start_with("#{photo}\t#{found.first[:label]}\t")
    record = JSON.parse(cli(*command, "--json", "-o", "boxes.png")[1], symbolize_names: true)
    expect(record).to eq(file: photo, objects: found)
    expect(Candle::Image.open("boxes.png").size).to eq([88, 66])
    expect(cli("detect", "-m", model)).to match([2, "", /at least one image/])
    expect(cli(*command, photo, "-o", "boxes.png")).to match([2, "", /one image/])
  end

  it "writes the text of images" do
    photo = File.expand_path("../../fixtures/images/photo.png", __dir__)
    model = TinyModels.path("trocr")
    text = Candle::DocumentReader.from_pretrained(model, device: "cpu").read(photo, max_length: 4)
    command = ["read", photo, "-m", model, "--max-tokens", "4", "--device", "cpu"]
    expect(cli(*command)[0, 2]).to eq([0, "#{text}\n"])
    expect(JSON.parse(cli(*command, "--json")[1])).to eq("file" => photo, "text" => text)
    cli(*command, "-o", "out.txt")
    expect(File.read("out.txt")).to eq("#{text}\n")
    expect(cli("read", "-m", model)).to match([2, "", /at least one image/])
    expect(cli(*command, "--task", "caption")).to match([2, "", /Florence-2/])
  end

  it "says what parts of images show" do
    photo = File.expand_path("../../fixtures/images/photo.png", __dir__)
    model = TinyModels.path("segformer")
    found = Candle::ImageSegmenter.from_pretrained(model, device: "cpu").segment(photo)
    command = ["segment", photo, "-m", model, "--device", "cpu"]
    status, output, = cli(*command)
    expect([status, output.lines.size]).to eq([0, found.size])
    parts = JSON.parse(cli(*command, "--json", "-o", "masks")[1])["parts"]
    expect(parts.map { |part| part["label"] }).to eq(found.map { |part| part[:label] })
    expect(parts.map { |part| Candle::Image.open(part["mask"]).size }).to all(eq([88, 66]))
    expect(cli("segment", "-m", model)).to match([2, "", /at least one image/])
  end

  it "estimates depths" do
    photo = File.expand_path("../../fixtures/images/photo.png", __dir__)
    model = TinyModels.path("depth_anything")
    command = ["depth", photo, "-m", model, "--device", "cpu"]
    status, output, = cli(*command)
    expect([status, output]).to match([0, /photo\.png\t[\d.e-]+\t[\d.e-]+$/])
    found = JSON.parse(cli(*command, "--json", "-o", "depths")[1])
    expect(Candle::Image.open(found["depth"]).size).to eq([88, 66])
    expect(found["least"]).to be < found["most"]
    expect(cli("depth", "-m", model)).to match([2, "", /at least one image/])
  end

  it "describes every command with an example" do
    verbs = described_class.verbs.except("help")
    expect(verbs.keys).to include("chat", "run", "embed", "rerank", "classify", "entities", "search", "serve", "mcp",
                                  "worker", "transcribe",
                                  "pull", "lock", "pack", "rm", "ps", "models", "info", "doctor", "bench", "version")
    expect(verbs.values.map(&:long_description)).to all(match(/\AExample: .*red-candle/))
    [%w[help serve], %w[serve --help]].each do |arguments|
      status, output, = cli(*arguments)
      expect([status, output]).to match([0, /--token=TOKEN.*Example: red-candle serve/m])
    end
    expect(cli("run", "-h")[1]).to match(/--schema.*Example: cat report/m)
  end

  it "leaves layers of a language model on the CPU" do
    command = ["run", "hi", "-m", llm, "--max-tokens", "5", "--temperature", "0", "--device", "cpu"]
    _, text, = cli(*command)
    %w[0 1 auto].each { |layers| expect(cli(*command, "--gpu-layers", layers).first(2)).to eq([0, text]) }
    expect(cli(*command, "--gpu-layers", "many")).to match([2, "", /takes a number or auto, not "many"/])
  end

  it "lists every command with its description, at 80 columns" do
    status, output, = cli("help")
    expect([status, cli[1]]).to eq([0, output])
    described_class.verbs.each do |name, command|
      expect(output).to match(/^  #{name} +#{Regexp.escape(command.description)}$/)
    end
    expect(output.lines.map { |line| line.chomp.size }.max).to be <= 80
  end

  it "prints help without stray characters" do
    described_class.verbs.each_key do |name|
      _, output, = cli("help", name)
      expect(output).not_to match(/[\^\x00-\x09\x0b-\x1f]/), output
    end
    expect(cli("help", "doctor")[1]).to match(/^  Ends with status 1/)
  end

  it "says which command or option was meant" do
    { %w[srve] => /"srve"\. Did you mean serve\?/, %w[entites] => /Did you mean entities\?/,
      %w[list] => /Did you mean models\?/, %w[remove x] => /Did you mean rm\?/, %w[zzzz] => /red-candle help lists/,
      %w[embed --modle x] => /"--modle"\. Did you mean --model\?/,
      %w[serve x --prot 1] => /Did you mean --port\?/ }.each do |arguments, message|
      expect(cli(*arguments)).to match([2, "", message])
    end
  end

  it "has JSON output by the same option for every command that has results" do
    without = described_class.verbs.reject { |_, command| command.options.key?(:json) }.keys
    expect(without).to contain_exactly("help", "chat", "serve", "mcp", "worker")
    expect(JSON.parse(cli("version", "--json")[1])).to eq("version" => Candle::VERSION)
    lines = ["-m", embedder, { input: "a dog\n" }]
    expect(cli("embed", "--json", *lines[0, 2], **lines[2])).to eq(cli("embed", *lines[0, 2], **lines[2]))
    expect(cli("embed", "--json", "--format", "csv", "-m", embedder, input: "a")).to match([2, "", /different formats/])
  end

  it "completes words in bash" do
    output, status = Open3.capture2e("bash", "-c", <<~SHELL, chdir: ProjectFiles::ROOT)
      . completions/red-candle.bash
      COMP_WORDS=(red-candle ser) COMP_CWORD=1; _red_candle; echo "${COMPREPLY[@]}"
      COMP_WORDS=(red-candle serve --to) COMP_CWORD=2; _red_candle; echo "${COMPREPLY[@]}"
      COMP_WORDS=(red-candle embed --format p) COMP_CWORD=3; _red_candle; echo "${COMPREPLY[0]}"
    SHELL
    expect([status.success?, output]).to eq([true, "serve\n--token\npacked\n"])
  end

  it "ends with a status that means something" do
    expect(cli("version")).to eq([0, "#{Candle::VERSION}\n", ""])
    expect(cli("dance")).to match([2, "", /Could not find command "dance"/])
    expect(cli("search", "x")).to match([2, "", /--query/])
    expect(cli("info", embedder, "--jsno")).to match([2, "", /--jsno/])
    expect(cli("info", "./nowhere")).to match([3, "", /\Ared-candle: .*nowhere/])
    expect(cli("embed", "missing.txt", "-m", "no/model")).to eq([1, "", "red-candle: there is no file missing.txt\n"])
    expect(cli("rerank", "q", "missing.txt")).to match([1, "", /there is no file missing.txt/])
    expect(cli("embed", ".", "-m", embedder)).to match([1, "", /\. is a directory/])
    expect(cli("run", "x", "-m", llm, "--schema", "no.json"))
      .to eq([1, "", "red-candle: No such file or directory: no.json\n"])
    expect(cli("run", "-m", llm)).to match([2, "", /needs a prompt/])
  end

  it "says what to install when thor is missing" do
    ruby, *arguments = WebServer::COMMAND
    output, status = Open3.capture2e({ "RUBYOPT" => nil }, ruby, "--disable-gems", *arguments, "version")
    expect([status.exitstatus, output]).to match([1, /gem install thor/])
  end

  it "ends cleanly on Ctrl-C" do
    Open3.popen2e(*WebServer::COMMAND, "embed", "-m", embedder, "-o", "out") do |_, output, process|
      # The file is there once the model is, and the command waits for texts.
      sleep 0.05 until File.exist?("out")
      Process.kill("INT", process.pid)
      expect([process.value.exitstatus, output.read]).to eq([130, ""])
    end
  end

  # Reline asks the terminal where its cursor is.
  def prompted(output, input)
    seen = +""
    until seen.include?("> ")
      seen << output.readpartial(1000).b
      input.write("\e[1;1R") if seen.slice!("\e[6n")
    end
  end

  it "ends a conversation on Ctrl-C with that status" do
    PTY.spawn({ "XDG_STATE_HOME" => Dir.pwd }, *WebServer::COMMAND, "chat", llm) do |output, input, pid|
      Timeout.timeout(30) do
        prompted(output, input)
        input.write("\x03")
        reader = Thread.new { loop { output.readpartial(1000) } rescue nil } # rubocop:disable Style/RescueModifier
        expect(Process.wait2(pid).last.exitstatus).to eq(130)
        reader.kill
      end
    end
    expect(File).to exist("red-candle/history")
  end

  it "embeds lines and JSON lines, and writes three formats" do
    input = "a dog\n\n{\"text\": \"hello\", \"id\": 3}\n{no json\n"
    status, output, errors = cli("embed", "-m", embedder, input: input)
    expect([status, errors]).to eq([0, ""])
    found = json_lines(output)
    model = ServedModels.models["embedder"]
    expect(found.map { |line| line["text"] }).to eq(["a dog", "hello", "{no json"])
    expect(found.map { |line| line["embedding"] }).to be_near(model.embed(["a dog", "hello", "{no json"]), 1e-6)
    _, csv, = cli("embed", "-m", embedder, "--format", "csv", "--dimensions", "2", input: "a, \"dog\"\n")
    expect(csv).to match(/\A"a, ""dog""",-?[\d.]+,-?[\d.]+\n\z/)
    cli("embed", "-m", embedder, "--format", "packed", "-o", "v.bin", input: "a dog\nhello\n")
    expect(File.binread("v.bin").unpack("e*").each_slice(32).to_a).to be_near(model.embed(["a dog", "hello"]), 1e-6)
  end

  it "continues a file that a run left unfinished" do
    File.write("in.txt", (1..200).map { |number| "dog #{number}\n" }.join)
    embedded = 0
    counting = SimpleDelegator.new(ServedModels.models["embedder"])
    counting.define_singleton_method(:embed) do |texts, **options|
      embedded += texts.size
      super(texts, **options)
    end
    allow(Candle::EmbeddingModel).to receive(:from_pretrained).and_return(counting)
    %w[jsonl csv packed].each do |format|
      command = ["embed", "in.txt", "-m", embedder, "--format", format, "-o", "out"]
      expect(cli(*command).first).to eq(0)
      whole = File.binread("out")
      # A run that was killed leaves half a record.
      File.binwrite("out", whole[0, (whole.bytesize / 2) + 5])
      embedded = 0
      expect(cli(*command).first).to eq(0)
      expect(File.binread("out") == whole).to be(true)
      expect(embedded).to be_between(90, 110)
      embedded = 0
      expect([cli(*command).first, embedded]).to eq([0, 0])
      File.delete("out")
    end
  end

  it "ranks, classifies and finds entities" do
    _, output, = cli("rerank", "dog", "-m", TinyModels.path("bert-reranker"), "--top", "1", "--json",
                     input: "cat\ndog\n")
    best = ServedModels.models["reranker"].rerank("dog", %w[cat dog]).first
    expect(json_lines(output)).to eq([{ "index" => best[:doc_id], "score" => best[:score], "text" => best[:text] }])
    _, output, = cli("rerank", "dog", "-m", TinyModels.path("bert-reranker"), "--format", "csv", input: "cat\ndog\n")
    expect(output.lines.first).to eq("#{best[:text]},#{best[:doc_id]},#{best[:score]}\n")
    _, output, = cli("classify", "-m", TinyModels.path("bert-sequence"), "--top", "1", input: "a dog\n")
    expect(json_lines(output).first["labels"].size).to eq(1)
    text = "the dog live in Paris\n"
    _, output, = cli("entities", "-m", TinyModels.path("bert-token"), "--threshold", "0", input: text)
    expect(json_lines(output).first["entities"]).not_to be_empty
    expect(cli("classify", input: "a")).to match([2, "", /--model/])
  end

  it "continues a ranking that was broken off" do
    texts = (1..150).map { |number| "dog #{number} #{"fox " * (number % 7)}" }
    File.write("in.txt", "#{texts.join("\n")}\n")
    scored = 0
    counting = SimpleDelegator.new(ServedModels.models["reranker"])
    counting.define_singleton_method(:rerank) do |query, documents, **options|
      raise Interrupt if scored >= 64 && scored < 1000

      scored += documents.size
      super(query, documents, **options)
    end
    allow(Candle::Reranker).to receive(:from_pretrained).and_return(counting)
    command = ["rerank", "a dog", "in.txt", "-m", TinyModels.path("bert-reranker"), "-o", "out.jsonl", "--top", "100"]
    expect(cli(*command).first).to eq(130)
    expect(File.exist?("out.jsonl")).to be(false)
    scored = 1000
    expect(cli(*command)).to eq([0, "", ""])
    expect(scored).to eq(1000 + 150 - 64)
    found = json_lines(File.read("out.jsonl"))
    wanted = ServedModels.models["reranker"].rerank("a dog", texts.map(&:strip), top_k: 100)
    expect(found.map { |entry| entry["score"] }).to be_near(wanted.map { |entry| entry[:score] }, 1e-6)
    expect(found.map { |entry| texts[entry["index"]].strip }).to eq(found.map { |entry| entry["text"].strip })
    expect(Dir["*.part"]).to be_empty
  end

  it "finds passages, and embeds only what has changed" do
    Dir.mkdir("docs")
    File.write("docs/a.md", "the quick fox\n\nthe lazy dog\n")
    File.write("docs/b.txt", "#{"hello world " * 200}\n")
    command = ["search", "docs", "-q", "the lazy dog", "-m", embedder, "--top", "2", "--json"]
    _, output, = cli(*command)
    found = json_lines(output)
    expect(found.first).to include("file" => "docs/a.md", "text" => include("the lazy dog"))
    expect(found.size).to eq(2)
    index = Candle::CLI::SearchIndex.new(".red-candle.index", model: embedder, dimension: 32)
    files = %w[docs/a.md docs/b.txt]
    whole = ->(_, text) { [[0, text.strip.size]] }
    expect(index.update(files, split: whole) { raise "nothing has changed" }).to eq(0)
    File.write("docs/b.txt", "other\n")
    asked = []
    index.update(files, split: whole) { |texts| texts.map { |text| (asked << text) && ([0.5] * 32).pack("e*") } }
    expect(asked).to eq(["other"])
    File.write("notes", "x")
    expect(cli(*command, "--index", "notes")).to match([1, "", /is not an index of red-candle/])
    expect(cli("search", "nowhere", "-q", "x", "-m", embedder)).to match([1, "", /there is no file nowhere/])
  end

  it "answers a prompt, and what is piped in" do
    _, output, = cli("run", "hi", "-m", llm, "--max-tokens", "5", "--temperature", "0")
    expect(output).to eq("#{ServedModels.models["llm"].chat([{ role: "user", content: "hi" }], max_length: 5,
                                                                                               temperature: 0)}\n")
    _, output, = cli("run", "-m", llm, "--raw", "--max-tokens", "5", "--json", input: "the dog\n")
    expect(JSON.parse(output)).to include("usage" => hash_including("completion_tokens" => 5))
    schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"], additionalProperties: false }
    File.write("schema.json", JSON.generate(schema))
    _, output, = cli("run", "hi", "-m", llm, "--max-tokens", "40", "--schema", "schema.json")
    expect(JSON.parse(output).keys).to eq(["ok"])
  end

  describe "with images" do
    photo = File.expand_path("../../fixtures/images/photo.png", __dir__)
    flower = File.expand_path("../../fixtures/images/flower.png", __dir__)
    let(:vlm) { Candle::VLM.from_pretrained(TinyModels.path("llava"), device: "cpu") }
    let(:clip) { Candle::CLIP.from_pretrained(TinyModels.path("clip"), device: "cpu") }

    it "talks about those that are mentioned" do
      FileUtils.cp(photo, "my photo.png")
      talk = "what is it? 'my photo.png'\nwhat is on no.png?\n/save talk.json\n"
      status, output, errors = cli("chat", vlm.model_id, "--max-tokens", "4", "--temperature", "0", input: talk)
      expect([status, errors]).to eq([0, ""])
      expect(output.lines.first).to eq("#{vlm.ask(photo, "what is it?", max_length: 4)}\n")
      said = JSON.parse(File.read("talk.json")).filter_map { |message| message["content"] if message["role"] == "user" }
      parts = [{ "type" => "image", "image" => "my photo.png" }, { "type" => "text", "text" => "what is it?" }]
      expect(said).to eq([parts, "what is on no.png?"])
    end

    it "finds the paths of images in what is typed" do
      FileUtils.cp(photo, "a b.png")
      split = Candle::CLI::ImagePaths.method(:split)
      expect(split.call('look at "a b.png" now')).to eq(["look at now", ["a b.png"]])
      expect(split.call("a\\ b.png, what?")).to eq(["what?", ["a b.png"]])
      expect(split.call("see x.png and  y")).to eq(["see x.png and  y", []])
    end

    it "answers prompts about them" do
      _, output, = cli("run", "what is it?", "-m", vlm.model_id, "--image", photo, flower, "--max-tokens", "4",
                       "--temperature", "0")
      expect(output).to eq("#{vlm.ask([photo, flower], "what is it?", max_length: 4)}\n")
      expect(cli("run", "what?", "-m", llm, "--image", photo)).to match([2, "", /needs a vision-language model/])
    end

    it "embeds and classifies them" do
      File.write("texts.txt", "a dog\n")
      _, output, = cli("embed", photo, "texts.txt", flower, "-m", clip.model_id)
      found = json_lines(output)
      expect(found.map { |line| line["image"] || line["text"] }).to eq([photo, "a dog", flower])
      wanted = [clip.embed_image(photo), clip.embed_text("a dog"), clip.embed_image(flower)]
      expect(found.map { |line| line["embedding"] }).to be_near(wanted, 1e-6)
      cli("embed", photo, flower, "-m", TinyModels.path("dinov2"), "--format", "packed", "-o", "v.bin")
      expect(File.size("v.bin")).to eq(2 * 32 * 4)
      _, output, = cli("classify", photo, "-m", TinyModels.path("vit-classifier"), "--top", "1")
      expect(json_lines(output).first).to match("image" => photo, "labels" => [hash_including("label", "score")])
      _, output, = cli("classify", photo, "-m", clip.model_id, "--labels", "dog", "flower", "--format", "csv")
      expect(output).to match(/\A#{Regexp.escape(photo)},(dog|flower),/)
      expect(cli("classify", photo, "-m", clip.model_id)).to match([2, "", /--labels dog flower/])
      expect(cli("embed", "texts.txt", "-m", TinyModels.path("vit"))).to match([1, "", /is not the path of one/])
      shorter = cli("embed", photo, "-m", clip.model_id, "--dimensions", "4")
      expect(shorter).to match([2, "", /not for models of the kind/])
    end
  end

  it "translates and summarizes" do
    t5 = Candle::Seq2Seq.from_pretrained(TinyModels.path("seq2seq/t5"), device: "cpu")
    expect(cli("run", "the dog", "-m", t5.model_id)[1]).to eq("#{t5.generate("the dog")}\n")
    _, output, = cli("run", "-m", t5.model_id, "--task", "summarize", input: "the dog")
    expect(output).to eq("#{t5.summarize("the dog")}\n")
    german = ["--task", "translate", "--to", "de", "--max-tokens", "4"]
    _, output, = cli("run", "the dog", "-m", t5.model_id, *german, "--json")
    expect(JSON.parse(output)["text"]).to eq(t5.translate("the dog", to: "de", max_length: 4))
    expect(cli("run", "x", "-m", llm, "--to", "de")).to match([2, "", /--to is for seq2seq models/])
  end

  it "talks, and obeys the commands of a conversation" do
    talk = "hi\n/save one.json\n/system Be brief.\nhi\n/save two.json\n/dance\n/reset\n/save three.json\n/quit\nnever\n"
    status, output, errors = cli("chat", llm, "--max-tokens", "3", "--temperature", "0", input: talk)
    expect([status, output.lines.size]).to match([0, be >= 2])
    roles = ->(file) { JSON.parse(File.read(file)).map { |message| message["role"] } }
    expect(roles.call("one.json")).to eq(%w[user assistant])
    expect(roles.call("two.json")).to eq(%w[system user assistant])
    expect(roles.call("three.json")).to eq(%w[system])
    expect(errors).to match(%r{unknown command /dance})
  end

  it "tells what a model is and needs" do
    _, output, = cli("info", embedder, "--json")
    facts = JSON.parse(output)
    expect(facts).to include("kind" => "embedding", "architecture" => "BertModel", "stored_as" => "f32",
                             "files" => [hash_including("name" => "model.safetensors")])
    expect(facts["parameters"]).to be_within(2000).of(ServedModels.models["embedder"].model_info[:parameters])
    expect(facts["memory_bytes"]).to eq(facts["parameters"] * 4)
    single = Dir["#{llm}/*.gguf"].first
    expect(JSON.parse(cli("info", single, "--json")[1])).to include("kind" => "llm", "architecture" => "llama")
    expect(cli("info", embedder)[1]).to match(/^memory for weights\s+about 88/)
  end

  it "checks the installation" do
    status, output, = cli("doctor", "--json")
    report = JSON.parse(output)
    expect(status).to eq(0)
    expect(report["checks"]["kernels"]).to include("ok" => true, "tested" => include("cpu"),
                                                   "failed" => [], "cases" => be > 500)
    expect(report["gems"]["puma"]).to include("version")
    allow(Candle::Device).to receive(:available_devices).and_return(%w[cpu cuda:7])
    status, output, = cli("doctor")
    expect([status, output]).to match([1, /kernels\s+FAILED: update the driver/])
    allow(Candle::Device).to receive(:available_devices).and_return(%w[cpu])
    allow(Candle::SelfTest).to receive(:kernels).and_return([["softmax", 3, ["f32 2x7"]], ["rope", 4, []]])
    status, output, = cli("doctor", "--json")
    expect([status, JSON.parse(output)["checks"]["kernels"]])
      .to match([1, hash_including("cases" => 7, "failed" => ["cpu: softmax f32 2x7"])])
  end

  it "measures a model" do
    _, output, = cli("bench", embedder, "--seconds", "0.2", "--json")
    expect(JSON.parse(output)).to include("kind" => "embedding", "short_texts_per_second" => be > 1)
    _, output, = cli("bench", llm, "--seconds", "0.1", "--json")
    expect(JSON.parse(output)).to include("kind" => "llm", "tokens_per_second" => be > 1)
  end

  describe "the cache" do
    around do |example|
      before = ENV.fetch("HF_HUB_CACHE", nil)
      ENV["HF_HUB_CACHE"] = File.expand_path("hub")
      example.run
    ensure
      ENV["HF_HUB_CACHE"] = before
    end

    before do
      root = "hub/models--owner--name"
      FileUtils.mkdir_p(["#{root}/blobs", "#{root}/refs", "#{root}/snapshots/new", "#{root}/snapshots/old"])
      { "used" => 300, "unused" => 500, "part.incomplete" => 100 }.each do |name, size|
        File.write("#{root}/blobs/#{name}", "x" * size)
      end
      File.symlink("../../blobs/used", "#{root}/snapshots/new/model.safetensors")
      File.symlink("../../blobs/unused", "#{root}/snapshots/old/model.safetensors")
      File.write("#{root}/refs/main", "new")
    end

    it "is listed" do
      expect(cli("models")).to eq([0, "owner/name  unknown  900 B\n", ""])
      config = '{"architectures":["BertForTokenClassification"]}'
      File.write("hub/models--owner--name/snapshots/new/config.json", config)
      expect(cli("models")).to eq([0, "owner/name  ner  948 B\n", ""])
      listed = JSON.parse(cli("models", "--json")[1])["models"]
      expect(listed).to eq([{ "id" => "owner/name", "kind" => "ner", "bytes" => 948, "revisions" => 2 }])
    end

    it "gives up models by their ids, all of them or none" do
      expect(cli("rm")).to match([2, "", /rm needs the id/])
      expect(cli("rm", "name")).to match([3, "", %r{name is not in the cache .*hub\. Did you mean owner/name\?}])
      expect(cli("rm", "owner/name", "owner/nothing")).to match([3, "", %r{owner/nothing is not in the cache}])
      expect(cli("models")[1]).to include("owner/name")
      expect(cli("rm", "owner/name")).to eq([0, "removed owner/name, 900 B\n", ""])
      expect(Dir.children("hub")).to be_empty
      expect(cli("rm", "..")).to match([3, "", /is not in the cache/])
    end

    it "is pruned of what no current revision uses" do
      expect(JSON.parse(cli("models", "--prune", "--json")[1])).to include("freed" => 600)
      expect(Dir.children("hub/models--owner--name/blobs")).to eq(["used"])
      expect(File.size("hub/models--owner--name/snapshots/new/model.safetensors")).to eq(300)
    end
  end

  it "lists the models of a server that runs" do
    WebServer.run("serve", "vectors=#{embedder}") do |server|
      status, output, errors = cli("ps", "--port", server.port.to_s)
      expect([status, errors]).to eq([0, ""])
      expect(output).to match(/\Avectors\b/)
      listed = JSON.parse(cli("ps", "--port", server.port.to_s, "--json")[1])
      expect(listed).to match("server" => server.base, "models" => [hash_including("name" => /\Avectors/)])
    end
    free = TCPServer.open("127.0.0.1", 0) { |socket| socket.addr[1] }
    expect(cli("ps", "--port", free.to_s)).to match([1, "", /no server listens on .*:#{free}/])
  end

  it "pulls what the loaders would read" do
    files = %w[config.json README.md model.safetensors pytorch_model.bin onnx/model.onnx onnx/config.json
               1_Pooling/config.json]
    allow(Candle::Hub).to receive(:files).and_return(files)
    expect(Candle::Hub).to receive(:snapshot)
      .with("a/b", revision: nil, files: %w[config.json 1_Pooling/config.json model.safetensors]).and_return("/x")
    expect(cli("pull", "a/b")).to eq([0, "/x\n", ""])
    parts = %w[m-Q4_K_M-00001-of-00002.gguf m-Q4_K_M-00002-of-00002.gguf]
    allow(Candle::Hub).to receive(:files).and_return(["m-Q8_0.gguf", *parts])
    expect(Candle::Hub).to receive(:snapshot).with("a/c", revision: nil, files: parts).and_return("/y")
    cli("pull", "a/c")
  end

  it "reads what to serve" do
    models = Candle::CLI::Serve.models(["chat=owner/name", "v:embedding=./x", "/models/tiny.gguf"])
    expect(models).to eq("chat" => { source: "owner/name" }, "v" => { source: "./x", kind: "embedding" },
                         "tiny" => { source: "/models/tiny.gguf" })
    expect { Candle::CLI::Serve.models(%w[a=x a=y]) }.to raise_error(ArgumentError, /two models have the name a/)
    expect(cli("serve")).to match([2, "", /needs a model/])
    expect(cli("serve", "a:poet=x")).to match([2, "", /unknown kind of model "poet"/])
    expect(cli("worker", "--worker-id", "w", "--model", llm, "--port", "0", "--callback-url", "ftp://x"))
      .to match([2, "", /http/])
  end
end
