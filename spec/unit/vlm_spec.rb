# frozen_string_literal: true

require "pathname"
require "tmpdir"

RSpec.describe Candle::VLM do
  let(:vlm) { described_class.from_pretrained(TinyModels.path("llava"), device: "cpu") }
  let(:asked) { TinyModels.record("llava")["asked"] }
  let(:photo) { image("photo.png") }

  def image(name)
    File.expand_path("../fixtures/images/#{name}", __dir__)
  end

  def messages(question)
    parts = question["pictures"].map { |name| { type: "image", image: image(name) } }
    [{ role: "user", content: [*parts, { type: "text", text: question["question"] }] }]
  end

  it "takes the length of an answer from the call, then from its configuration" do
    model = described_class.from_pretrained(TinyModels.path("llava"), device: "cpu")
    image = File.expand_path("../fixtures/images/photo.png", __dir__)
    lengths = []
    allow(model.llm).to receive(:complete_ids).and_wrap_original do |original, ids, prompt, **options|
      options[:max_length] = 2 if options[:max_length] == 256
      original.call(ids, prompt, **options).tap { |completion| lengths << completion.usage.completion_tokens }
    end
    model.ask(image, "what?", config: Candle::GenerationConfig.deterministic(max_length: 3))
    model.describe(image, config: { max_length: 4, temperature: 0 })
    model.ask(image, "what?", config: { max_length: 9, temperature: 0 }, max_length: 5)
    model.ask(image, "what?", max_tokens: 6)
    model.ask(image, "what?")
    expect(lengths).to eq([3, 4, 5, 6, 2])
    expect { model.ask(image, "what?", max_length: 3, max_tokens: 4) }.to raise_error(ArgumentError, /same option/)
  end

  it "counts the tokens of images, too" do
    asked.each do |question|
      count = vlm.complete(messages(question), max_length: 1).usage.prompt_tokens
      expect([vlm, vlm.llm].map { |model| model.count_tokens(messages(question)) }).to eq([count, count])
    end
    text = [{ role: "user", content: "hi" }]
    expect(vlm.count_tokens(text)).to eq(vlm.complete(text, max_length: 1).usage.prompt_tokens)
  end

  it "chooses the tokens that transformers chooses", :gc_stress do
    asked.each do |question|
      completion = vlm.complete(messages(question), max_length: 8)
      expect(completion.token_ids).to eq(question["tokens"])
      images = question["pictures"].map { |name| image(name) }
      expect(vlm.ask(images, question["question"], max_length: 8)).to eq(completion.text)
    end
  end

  it "writes the prompts of GOT-OCR, which has no template, as its processor does" do
    folder = File.expand_path("../fixtures/seeded_vlms/got_ocr2", __dir__)
    tokenizer = Candle::Tokenizer.from_file(File.join(folder, "tokenizer.json"))
    template = described_class.send(:const_get, :GOT_TEMPLATE)
    prompts = Candle::DocumentReader.send(:const_get, :PROMPTS).fetch("got_ocr2")
    written = %i[text markdown].map do |format|
      content = [{ type: "image" }, { type: "text", text: prompts.fetch(format) }]
      tokenizer.render([{ role: "user", content: content }], chat_template: template)
    end
    expect(written).to eq(JSON.parse(File.read(File.join(folder, "expected.json")))["own_prompts"])
  end

  it "takes an image in every form, and streams" do
    wanted = vlm.ask(photo, "what is it?", max_length: 8)
    [Pathname(photo), File.binread(photo), File.open(photo, "rb"), Candle::Image.open(photo)].each do |source|
      pieces = []
      expect(vlm.ask(source, "what is it?", max_length: 8) { |piece| pieces << piece }).to eq(wanted)
      expect(pieces.join).to eq(wanted)
    end
    expect(vlm.describe(photo, max_length: 4)).to eq(vlm.ask(photo, described_class::DESCRIBE, max_length: 4))
  end

  it "looks at an image once" do
    first = vlm.complete(messages(asked[0]), max_length: 4)
    second = vlm.complete(messages(asked[0].merge("question" => "what else?")), max_length: 4)
    expect(vlm.looks).to eq(1)
    expect(first.usage.cached_tokens).to eq(0)
    expect(second.usage.cached_tokens).to be >= 16
    fresh = described_class.from_pretrained(TinyModels.path("llava"), device: "cpu")
    expect(fresh.complete(messages(asked[0].merge("question" => "what else?")), max_length: 4).text).to eq(second.text)
  end

  it "lets an LLM chat about images" do
    llm = Candle::LLM.from_pretrained(TinyModels.path("llava"), device: "cpu")
    greedy = Candle::GenerationConfig.deterministic(max_length: 8)
    expect(llm.chat(messages(asked[0]), config: greedy)).to eq(vlm.ask(photo, asked[0]["question"], max_length: 8))
    blind = Candle::LLM.from_pretrained(TinyModels.path("decoders/llama"), device: "cpu")
    expect { blind.chat(messages(asked[0])) }.to raise_error(Candle::UnsupportedModelError, /no vision tower/)
  end

  it "reads a text that is no list of parts" do
    parts = [{ role: "user", content: [{ type: "text", text: "what is it?" }] }]
    plain = [{ role: "user", content: "what is it?" }]
    expect(vlm.complete(plain, max_length: 4)).to eq(vlm.complete(parts, max_length: 4))
    expect(vlm.complete([{ role: "user", content: "a" }], max_length: 4).usage.prompt_tokens)
      .to be < vlm.complete(plain, max_length: 4).usage.prompt_tokens
  end

  it "keeps a conversation with images" do
    session = vlm.session(system: "Be brief.")
    first = session.say("what is it?", images: [photo], max_length: 4)
    session.say("and?", max_length: 4)
    expect(session.usage.cached_tokens).to be >= 16
    expect([vlm.looks, session.messages.size, first]).to match([1, 5, String])
    Dir.mktmpdir do |directory|
      path = File.join(directory, "talk.json")
      session.save(path)
      expect(Candle::Session.load(vlm, path).messages).to eq(session.messages)
      session.say("this?", images: File.binread(photo), max_length: 2)
      expect { session.save(path) }.to raise_error(Candle::InvalidInputError, /not a path/)
    end
    expect(vlm.stats[:tokens_out]).to be_positive
    [7, BasicObject.new].each do |odd|
      expect { session.say("this?", images: odd) }.to raise_error(Candle::InvalidInputError)
    end
  end

  %w[llava-next llava-next-full llava-next-layers smolvlm qwen2-vl qwen2.5-vl gemma3-vision
     gemma3-pieces].each do |name|
    it "lets #{name} see what transformers lets it see" do
      source = TinyModels.path(name)
      vlm = described_class.from_pretrained(source, device: "cpu")
      llm = Candle::LLM.from_pretrained(source, device: "cpu")
      greedy = Candle::GenerationConfig.deterministic(max_length: 8)
      TinyModels.record(name)["asked"].each do |question|
        completion = vlm.complete(messages(question), max_length: 8)
        expect(completion.token_ids).to eq(question["tokens"])
        expect(completion.usage.prompt_tokens).to eq(question["ids"].size)
        expect(llm.chat(messages(question), config: greedy)).to eq(completion.text)
      end
      again = vlm.complete(messages(TinyModels.record(name)["asked"][0]), max_length: 8)
      expect(again.token_ids).to eq(TinyModels.record(name)["asked"][0]["tokens"])
      expect(again.usage.cached_tokens).to eq(again.usage.prompt_tokens - 1)
      expect(vlm.looks).to eq(3)
      expect(Candle::ModelKind.of(source)).to eq(:vlm)
    end
  end

  describe "with GGUF files" do
    def gguf(name, *file)
      TinyModels.path(File.join("gguf-vlms", name, *file))
    end

    %w[llava llava-next smolvlm qwen2-vl qwen2.5-vl gemma3-vision].each do |name|
      it "lets #{name} see what its checkpoint sees" do
        vlm = described_class.from_pretrained(gguf(name), device: "cpu")
        expect(Candle::ModelKind.of(gguf(name))).to eq(:vlm)
        TinyModels.record(name)["asked"].each do |question|
          expect(vlm.complete(messages(question), max_length: 8).token_ids).to eq(question["tokens"])
        end
      end
    end

    it "takes the tower that is named, or lies beside the file" do
      question = TinyModels.record("smolvlm")["asked"][0]
      wanted = question["tokens"]
      text = gguf("smolvlm", "model.gguf")
      tower = gguf("smolvlm", "mmproj-f32.gguf")
      [[text, {}], [gguf("smolvlm"), { gguf_file: "model.gguf", mmproj_file: "mmproj-f32.gguf" }],
       [text, { mmproj_file: Pathname(tower) }]].each do |source, options|
        vlm = described_class.from_pretrained(source, device: "cpu", **options)
        expect(vlm.complete(messages(question), max_length: 8).token_ids).to eq(wanted)
      end
      llm = Candle::LLM.from_pretrained(gguf("smolvlm"), device: "cpu")
      expect(llm.complete(messages(question), config: Candle::GenerationConfig.deterministic(max_length: 8)).token_ids)
        .to eq(wanted)
    end

    it "reads a decoder whose positions have three axes without its tower" do
      %w[qwen2-vl qwen2.5-vl].each do |name|
        models = [gguf(name, "model.gguf"), TinyModels.path(name)].map { |source| Candle::LLM.from_pretrained(source) }
        found, wanted = models.map { |llm| llm.logprobs("who is the dog?").map { |entry| entry[:logprob].to_f } }
        expect(found).to be_near(wanted, 1e-4)
      end
    end

    it "answers with a quantized decoder and a tower of 16 bits" do
      vlm = described_class.from_pretrained(gguf("quantized"), device: "cpu")
      expect(vlm.llm.model_info[:kernels]["linear"]).to include("q8_0")
      expect(vlm.describe(photo, max_length: 4)).to be_a(String)
    end

    it "writes images into the text for a template that knows none" do
      vlm = described_class.from_pretrained(gguf("llava"), device: "cpu")
      blind = "{% for m in messages %}{{ m.role | upper }}: {{ m.content }} {% endfor %}ASSISTANT:"
      asked.each do |question|
        completion = vlm.complete(messages(question), max_length: 8, chat_template: blind)
        expect(completion.token_ids).to eq(question["tokens"])
      end
    end

    it "says what is wrong" do
      expect { described_class.from_pretrained(TinyModels.path("gguf-decoders/llama"), device: "cpu") }
        .to raise_error(Candle::UnsupportedModelError, /no vision tower.*mmproj_file:/)
      expect { described_class.from_pretrained(gguf("llava"), device: "cpu", mmproj_file: "other.gguf") }
        .to raise_error(Candle::ModelNotFoundError, /other.gguf/)
      expect { described_class.from_pretrained(gguf("llava"), device: "cpu", mmproj_file: "model.gguf") }
        .to raise_error(Candle::UnsupportedModelError, /is not a vision tower/)
      expect { described_class.from_pretrained(gguf("llava"), device: "cpu", mmproj_file: 7) }
        .to raise_error(Candle::InvalidInputError, /mmproj_file/)
      expect { Candle::LLM.from_pretrained(gguf("llava", "mmproj-f32.gguf"), device: "cpu") }
        .to raise_error(Candle::UnsupportedModelError, /"clip" is not a language model/)
      expect { Candle::ModelKind.of(gguf("llava", "mmproj-f32.gguf")) }
        .to raise_error(Candle::UnsupportedModelError, /vision tower/)
    end
  end

  it "lets several read together what each reads alone" do
    %w[qwen2.5-vl gemma3-vision].each do |name|
      vlm = described_class.from_pretrained(TinyModels.path(name), device: "cpu")
      questions = TinyModels.record(name)["asked"] * 3
      answers = questions.map { |question| Thread.new { vlm.complete(messages(question), max_length: 8) } }
      expect(answers.map { |thread| thread.value.token_ids }).to eq(questions.map { |question| question["tokens"] })
    end
  end

  it "tells places in a text from those of images" do
    gemma = described_class.from_pretrained(TinyModels.path("gemma3-vision"), device: "cpu")
    { gemma => "<image_soft_token>", vlm => "<image> </s>" }.each do |model, marks|
      asked = ->(text) { [{ role: "user", content: [{ type: "image", image: photo }, { type: "text", text: text }] }] }
      ids = marks.split.map { |mark| model.tokenizer.token_to_id(mark) }
      quiet, loud = ["what?", "#{marks} what?"].map { |text| model.send(:encoded, asked.call(text), nil) }
      expect(loud[1].to_a.tally.slice(*ids)).to eq(quiet[1].to_a.tally.slice(*ids))
      expect(loud[1].size).to be > quiet[1].size
      expect(loud.first).to include("#{marks} what?")
      expect(model.ask(photo, "#{marks} what?", max_length: 3)).to be_a(String)
    end
  end

  it "says what is wrong" do
    expect { vlm.ask([], "what?") }.to raise_error(Candle::InvalidInputError, /at least one/)
    expect { vlm.ask("no.png", "what?") }.to raise_error(Candle::InvalidInputError, /no.png/)
    expect { vlm.ask(photo, nil) }.to raise_error(Candle::InvalidInputError, /question must be/)
    expect { vlm.chat([{ role: "user", content: [{ type: "image" }] }]) }
      .to raise_error(Candle::InvalidInputError, /needs the image itself/)
    [{ type: "audio", audio: "a" }, { type: "image_url", image_url: "a" }, { type: "text" }, "a"].each do |part|
      expect { vlm.chat([{ role: "user", content: [part] }]) }
        .to raise_error(Candle::InvalidInputError, /a part of a message must be/)
    end
    expect { vlm.chat([]) }.to raise_error(Candle::InvalidInputError, /messages is empty/)
    expect { described_class.from_pretrained(TinyModels.path("decoders/llama"), device: "cpu") }
      .to raise_error(Candle::UnsupportedModelError, /no vision tower/)
  end

  it "gives every patch of an image a place in the prompt" do
    encoder = described_class::ImageEncoder.load(vlm.llm, vlm.model_id, { device: "cpu" })
    seen = encoder.encode(vlm.llm, [photo, image("flower.png")])
    expect(seen.map(&:size)).to eq([16, 16])
    start = vlm.tokenizer.ids("a", add_special_tokens: false)
    ids = encoder.join([start] * 3, seen).to_a
    expect(ids.size).to eq((3 * start.size) + 32)
    expect((ids - start.to_a).uniq.size).to eq(32)
    expect(seen.map(&:spelling)).to eq([encoder.place] * 2)
  end

  it "is made by new, and is not copied" do
    expect(described_class.new(TinyModels.path("llava"), device: "cpu").model_id).to eq(TinyModels.path("llava"))
    expect(described_class.new(model_path: TinyModels.path("llava")).looks).to eq(0)
    expect { described_class.new }.to raise_error(ArgumentError, /use Candle::VLM.from_pretrained/)
    expect { vlm.dup }.to raise_error(Candle::Error, /a Candle::VLM can't be copied/)
    expect { Marshal.dump(vlm) }.to raise_error(Candle::Error, /a Candle::VLM can't be marshalled/)
  end

  it "says what it is" do
    expect(vlm.model_info).to include(architecture: "LlavaForConditionalGeneration")
    expect(vlm.inspect).to include("llava", "cpu")
    expect(vlm.warm_up).to be(vlm)
    expect(Candle::ModelKind.of(TinyModels.path("llava"))).to eq(:vlm)
    expect(Candle::DeviceUtils.supports_model?("cpu", :vlm)).to be(true)
    vlm.close
    expect { vlm.describe(photo) }.to raise_error(Candle::Error, /was closed/)
  end
end
