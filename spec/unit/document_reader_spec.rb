# frozen_string_literal: true

require "tmpdir"

RSpec.describe Candle::DocumentReader do
  def image(name)
    File.expand_path("../fixtures/images/#{name}", __dir__)
  end

  def reader(name)
    @readers ||= {}
    @readers[name] ||= described_class.from_pretrained(TinyModels.path(name), device: "cpu")
  end

  def cases(name)
    TinyModels.record(name)["cases"]
  end

  it "reads with the beams and rules that the checkpoint names, as transformers does", :gc_stress do
    texts = cases("trocr").map { |entry| reader("trocr").tokenizer.decode(entry["plain"]).strip }
    pictures = cases("trocr").map { |entry| image(entry["picture"]) }
    expect(reader("trocr").read(pictures)).to eq(texts)
    expect(reader("trocr").read(pictures.first)).to eq(texts.first)
    expect(reader("trocr").read([])).to eq([])
  end

  it "takes beams, lengths and prompts from the call" do
    cases("donut").each do |entry|
      wanted = reader("donut").tokenizer.decode(entry["tokens"]).strip
      read = reader("donut").read(image(entry["picture"]), prompt: entry["prompt"], max_length: 8, num_beams: 1)
      expect(read).to eq(wanted)
    end
    photo = image("photo.png")
    expect(reader("donut").read(photo, max_length: 3).size).to be <= reader("donut").read(photo, max_length: 8).size
    expect { reader("donut").read(photo, max_length: 0) }.to raise_error(ArgumentError, /max_length/)
    expect { reader("donut").read(photo, num_beams: 1000) }.to raise_error(Candle::InvalidInputError, /num_beams/)
    expect { reader("donut").read(photo, prompt: "a" * 200) }.to raise_error(Candle::InvalidInputError, /prompt has/)
  end

  it "reads with Pix2Struct, and says that questions belong into images" do
    cases("pix2struct").each do |entry|
      wanted = reader("pix2struct").tokenizer.decode(entry["tokens"]).strip
      read = reader("pix2struct").read(image(entry["picture"]), prompt: entry["prompt"], max_length: 8, num_beams: 1)
      expect(read).to eq(wanted)
    end
    expect(Candle::ModelKind.of(TinyModels.path("pix2struct"))).to eq(:document_reader)
    Dir.mktmpdir("asked") do |folder|
      FileUtils.cp(Dir[File.join(TinyModels.path("pix2struct"), "*")], folder)
      path = File.join(folder, "preprocessor_config.json")
      File.write(path, JSON.generate(JSON.parse(File.read(path)).merge("is_vqa" => true)))
      asked = described_class.from_pretrained(folder, device: "cpu")
      expect(asked.read(image("photo.png"), max_length: 2)).to be_a(String)
      expect { asked.read(image("photo.png"), prompt: "what?") }
        .to raise_error(Candle::InvalidInputError, /draw it above the image/)
    end
  end

  it "does the tasks of Florence-2 by name" do
    entries = cases("florence2").group_by { |entry| entry["prompt"] }
    entries.fetch("What is the text in the image?").each do |entry|
      wanted = reader("florence2").tokenizer.decode(entry["tokens"], skip_special_tokens: false)
      found = reader("florence2").read(image(entry["picture"]), max_length: 8, num_beams: 1)
      expect(found).to eq(wanted.gsub(%r{</?s>|<pad>}, "").strip)
    end
    expect(reader("florence2").read(image("photo.png"), task: :detect, max_length: 8)).to be_an(Array)
    expect(reader("florence2").tasks).to include(:caption, :detect, :ocr_with_region)
    expect { reader("florence2").read(image("photo.png"), task: :dance) }.to raise_error(ArgumentError, /Known are ocr/)
    expect { reader("florence2").read(image("photo.png"), task: :segment) }.to raise_error(ArgumentError, /needs text/)
    expect { reader("florence2").read(image("photo.png"), task: :ocr, text: "a") }
      .to raise_error(ArgumentError, /takes no text/)
    expect { reader("trocr").read(image("photo.png"), task: :ocr) }.to raise_error(ArgumentError, /Florence-2/)
  end

  it "says where Florence-2 finds things" do
    tasks = Candle::FlorenceTasks
    size = [640, 480]
    found = tasks.result(:detect, "</s><s>a car<loc_52><loc_332><loc_932><loc_774><loc_0><loc_1><loc_2><loc_3>wheel" \
                                  "<loc_500><loc_500><loc_600><loc_600></s>", size)
    expect(found).to eq(
      [{ label: "a car", box: { xmin: 33, ymin: 159, xmax: 596, ymax: 371 } },
       { label: "a car", box: { xmin: 0, ymin: 0, xmax: 1, ymax: 1 } },
       { label: "wheel", box: { xmin: 320, ymin: 240, xmax: 384, ymax: 288 } }]
    )
    corners = (0..7).map { |number| "<loc_#{number * 100}>" }.join
    expect(tasks.result(:ocr_with_region, "<s>STOP#{corners}</s>", size))
      .to eq([{ text: "STOP", quad: [[0, 48], [128, 144], [256, 240], [384, 336]] }])
    expect(tasks.result(:segment, "<loc_0><loc_0><loc_999><loc_999><sep><loc_1><loc_2><loc_3>", size))
      .to eq([{ label: "", polygons: [[[0, 0], [639, 479]], [[0, 1]]] }])
    rings = "<poly><loc_0><loc_0><loc_999><loc_999><sep><loc_1><loc_2><loc_3><loc_4></poly><poly><loc_5><loc_6></poly>"
    expect(tasks.result(:region_to_segmentation, rings, size))
      .to eq([{ label: "", polygons: [[[0, 0], [639, 479]], [[0, 1], [2, 2]]] }, { label: "", polygons: [[[3, 3]]] }])
    expect(tasks.result(:open_vocabulary_detection, "cat<poly><loc_0><loc_0><loc_999><loc_999></poly>", size))
      .to eq([{ label: "cat", polygons: [[[0, 0], [639, 479]]] }])
    expect(tasks.result(:caption, "<s>a green car</s>", size)).to eq("a green car")
    expect(tasks.prompt(:phrase_grounding, " a car ")).to eq("Locate the phrases in the caption: a car")
  end

  it "asks vision-language models" do
    vlm = Candle::VLM.from_pretrained(TinyModels.path("llava"), device: "cpu")
    asked = described_class.from_pretrained(TinyModels.path("llava"), device: "cpu")
    question = "Write the text of this document, and nothing else."
    photo = image("photo.png")
    expect(asked.read(photo, max_length: 4)).to eq(vlm.ask(photo, question, max_length: 4).strip)
    expect(asked.read([File.binread(photo)], prompt: "what?", max_length: 4))
      .to eq([vlm.ask(photo, "what?", max_length: 4).strip])
    expect(described_class.of(vlm).read(photo, format: :markdown, max_length: 2)).to be_a(String)
    expect { asked.read(photo, num_beams: 2) }.to raise_error(ArgumentError, /num_beams/)
    expect { described_class.of(5) }.to raise_error(ArgumentError, /VLM/)
  end

  it "says what it is, and refuses what it can't do" do
    expect(reader("trocr").model_info).to include(family: "trocr", architecture: "VisionEncoderDecoderModel")
    expect(reader("donut").model_info[:family]).to eq("donut")
    expect(%w[trocr donut florence2].map { |name| Candle::ModelKind.of(TinyModels.path(name)) })
      .to all(eq(:document_reader))
    expect(reader("trocr").formats).to eq([:text])
    expect(reader("trocr").warm_up).to be(reader("trocr"))
    expect(reader("trocr").inspect).to match(/DocumentReader .*trocr trocr f32 on cpu/)
    photo = image("photo.png")
    expect { reader("trocr").read(photo, format: :markdown) }.to raise_error(ArgumentError, /plain text/)
    expect { reader("trocr").read(photo, format: :pdf) }.to raise_error(ArgumentError, /:text or :markdown/)
    expect { reader("trocr").read([photo, "no image\0"]) }.to raise_error(Candle::InvalidInputError, /index 1/)
    expect { described_class.from_pretrained(TinyModels.path("bert"), device: "cpu") }
      .to raise_error(Candle::UnsupportedModelError)
    expect { described_class.from_pretrained(TinyModels.path("trocr"), dtype: :int8) }
      .to raise_error(Candle::InvalidInputError, /int8/)
    expect { described_class.from_pretrained(TinyModels.path("trocr"), colour: 1) }.to raise_error(ArgumentError)
    expect { described_class.new }.to raise_error(ArgumentError, /needs a model/)
  end

  it "closes" do
    model = described_class.from_pretrained(TinyModels.path("trocr"), device: "cpu")
    model.close
    expect(model).to be_closed
    expect { model.read(image("photo.png")) }.to raise_error(Candle::Error, /closed/)
  end
end
