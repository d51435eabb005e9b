# frozen_string_literal: true

require "pathname"
require "stringio"
require "timeout"

RSpec.describe Candle::CLIP do
  let(:clip) { described_class.from_pretrained(TinyModels.path("clip"), device: "cpu") }
  let(:expected) { TinyModels.record("clip") }
  let(:images) { expected["pictures"].map { |name| File.expand_path("../fixtures/images/#{name}", __dir__) } }

  %w[clip siglip siglip2].each do |name|
    it "embeds texts and images as transformers does with #{name}" do
      model = described_class.from_pretrained(TinyModels.path(name), device: "cpu")
      expect(model.embed_text(expected["texts"])).to be_near(TinyModels.rows(name, "texts"), 1e-4)
      expect(model.embed_image(images)).to be_near(TinyModels.rows(name, "pictures"), 1e-4)
      scores = model.classify_image(images, expected["texts"], template: "{}").map do |list|
        expected["texts"].map { |text| list.find { |entry| entry[:label] == text }[:score] }
      end
      expect(scores).to be_near(TinyModels.rows(name, "scores"), 1e-4)
    end
  end

  it "runs MetaCLIP 2 as transformers does" do
    source = File.expand_path("../fixtures/seeded_pictures/metaclip_2-pair", __dir__)
    texts, pictures = JSON.parse(File.read(File.join(source, "expected.json")))["cases"].partition { |one| one["text"] }
    paths = pictures.map { |one| File.expand_path("../fixtures/images/#{one["picture"]}", __dir__) }
    Dir.mktmpdir do |folder|
      FileUtils.cp(Dir[File.join(source, "*.json")], folder)
      weights = SeededModels.safetensors(JSON.parse(File.read(File.join(source, "tensors.json"))))
      File.binwrite(File.join(folder, "model.safetensors"), weights)
      model = described_class.from_pretrained(folder, device: "cpu")
      labels = texts.map { |one| one["text"] }
      expect(model.embed_text(labels)).to be_near(texts.map { |one| one["vector"] }, 1e-4)
      expect(model.embed_image(paths)).to be_near(pictures.map { |one| one["vector"] }, 1e-4)
      scores = model.classify_image(paths, labels, template: "{}").map do |list|
        list.to_h { |one| one.values_at(:label, :score) }.values_at(*labels)
      end
      expect(scores).to be_near(pictures.map { |one| one["scores"] }, 1e-4)
    end
  end

  it "takes images in every form, alone and in batches", :gc_stress do
    path = images.first
    alone = clip.embed_image(path)
    [Pathname(path), File.binread(path), StringIO.new(File.binread(path)), Candle::Image.open(path)].each do |image|
      expect(clip.embed_image(image)).to eq(alone)
    end
    expect(clip.embed_image(images).first).to be_near(alone, 1e-5)
    expect(clip.embed_image([])).to eq([])
    expect(clip.embed_text([])).to eq([])
    expect(alone.sum { |value| value * value }).to be_within(1e-5).of(1)
  end

  it "gives vectors in every form" do
    expect(clip.embed_image(images, as: :tensor).shape).to eq([4, 24])
    expect(clip.embed_text("fox", as: :packed).unpack("e*")).to be_near(clip.embed_text("fox"), 1e-6)
    expect(clip.embed_image(images.first, as: :int8).bytesize).to eq(24)
    expect(clip.embed_image(images, as: :binary).map(&:bytesize)).to eq([3] * 4)
    expect { clip.embed_image(images.first, as: :json) }.to raise_error(ArgumentError, /as must be one of/)
    counts = []
    clip.embed_image(images, progress: ->(done, total) { counts << [done, total] })
    expect(counts.last).to eq([4, 4])
  end

  it "finds images by texts, by images and by vectors" do
    photo = Candle::Image.open(images[1])
    found = clip.search(photo, images, top_k: 2)
    expect(found.first).to include(index: 1, image: images[1], score: be_within(1e-5).of(1))
    vectors = clip.embed_image(images)
    expect(clip.search("a dog", images)).to be_near_hits(clip.search("a dog", vectors))
    packed = clip.embed_image(images, as: :packed)
    expect(clip.search("a dog", packed, top_k: nil).map { |hit| hit[:image] }).to eq([nil] * 4)
    expect(clip.search("a dog", [])).to eq([])
    expect { clip.search("a dog", "a dog.png") }.to raise_error(Candle::InvalidInputError, /must be an Array of images/)
    expect(clip.similarity(photo, vectors[1])).to be_within(1e-5).of(1)
    expect(clip.similarity("a dog", "a dog")).to be_within(1e-5).of(1)
  end

  matcher :be_near_hits do |other|
    match do |found|
      found.map { |hit| hit[:index] } == other.map { |hit| hit[:index] } &&
        found.zip(other).all? { |one, two| (one[:score] - two[:score]).abs < 1e-5 }
    end
  end

  it "classifies by a template" do
    found = clip.classify_image(images.first, %w[dog flower])
    texts = ["a photo of a dog", "a photo of a flower"]
    plain = clip.classify_image(images.first, texts, template: "{}")
    expect(found.map { |entry| entry[:score] }).to eq(plain.map { |entry| entry[:score] })
    expect(found.sum { |entry| entry[:score] }).to be_within(1e-5).of(1)
    expect(clip.classify_image(images, %w[dog flower]).size).to eq(4)
    expect { clip.classify_image(images.first, []) }.to raise_error(Candle::InvalidInputError, /labels/)
    expect { clip.classify_image(images.first, ["a"], template: "no place") }
      .to raise_error(Candle::InvalidInputError, /template must hold/)
  end

  it "names the image that can't be read" do
    expect { clip.embed_image([images.first, "not an image\0".b]) }
      .to raise_error(Candle::InvalidInputError, /the image at index 1/)
    expect { clip.embed_image([images.first, 7]) }.to raise_error(Candle::InvalidInputError, /images\[1\] must be/)
    expect { clip.embed_text([nil]) }.to raise_error(Candle::InvalidInputError)
  end

  it "says what it is, and closes" do
    expect(clip.model_info).to include(family: "clip", architecture: "CLIPModel", dimensions: 24, max_length: 24)
    expect(clip.dimension).to eq(24)
    expect(clip.tokenizer.encode("fox").last).to eq(clip.tokenizer.token_to_id("<|endoftext|>"))
    expect(clip.device_report[:kernels].keys).to include("attention", "linear", "layer_norm")
    expect(clip.warm_up).to be(clip)
    clip.close
    expect { clip.embed_text("fox") }.to raise_error(Candle::Error, /was closed/)
    expect(Candle::DeviceUtils.supports_model?("cpu", :clip)).to be(true)
  end

  it "computes in other types" do
    %i[int8 bf16].each do |dtype|
      model = described_class.from_pretrained(TinyModels.path("clip"), device: "cpu", dtype: dtype)
      found = model.embed_image(images.first)
      cosine = found.zip(clip.embed_image(images.first)).sum { |a, b| a * b }
      expect(cosine).to be > 0.98
    end
  end

  it "runs in threads and can be interrupted" do
    model = clip
    wanted = model.embed_image(images)
    found = Array.new(4) { Thread.new { model.embed_image(images) } }.map(&:value)
    expect(found).to all(be_near(wanted, 1e-6))
    many = images * 2000
    expect { Timeout.timeout(0.2) { model.embed_image(many) } }.to raise_error(Timeout::Error)
    expect(model.embed_image(images)).to be_near(wanted, 1e-6)
  end

  it "goes on in a forked child", skip: !Process.respond_to?(:fork) do
    wanted = clip.embed_image(images.first)
    reader, writer = IO.pipe
    pid = fork do
      writer.write(clip.embed_image(images.first, as: :packed))
      writer.close
      exit!(0)
    end
    writer.close
    found = reader.read.unpack("e*")
    Process.wait(pid)
    expect(found).to be_near(wanted, 1e-6)
  end

  it "refuses what has no methods, and texts that lie about themselves" do
    liar = Class.new { def to_str = 7 }.new
    model = described_class.from_pretrained(TinyModels.path("clip"), device: "cpu")
    [BasicObject.new, liar].each do |odd|
      expect { model.similarity(odd, "a dog") }.to raise_error(Candle::InvalidInputError)
      expect { model.embed_image(odd) }.to raise_error(Candle::InvalidInputError)
    end
    index = Candle::Index.new(dimension: 2)
    expect { index.add(BasicObject.new, [1, 2]) }.to raise_error(ArgumentError, /an id must be/)
    expect { index.add("a", BasicObject.new) }.to raise_error(ArgumentError, /a vector must be/)
    expect { Candle::VLM.of({}) }.to raise_error(ArgumentError, /llm must be a Candle::LLM/)
  end
end
