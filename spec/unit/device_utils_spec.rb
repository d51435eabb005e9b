# frozen_string_literal: true

require "stringio"

RSpec.describe Candle::DeviceUtils do
  let(:path) { TinyModels.path("bert") }
  let(:log) { StringIO.new }

  around do |example|
    logger = Candle.logger
    Candle.configure_logging { |config| config.output = log }
    example.run
  ensure
    Candle.logger = logger
  end

  # A class whose models fail anywhere but on the CPU, at the first forward.
  let(:fragile) do
    Class.new do
      attr_reader :device

      def self.name = "Fragile"
      def self.from_pretrained(source = "none", device:, **options) = new(source, device, options)

      def initialize(source, device, options)
        @device = Candle::Device.parse(device)
        @given = [source, options]
      end

      attr_reader :given

      def warm_up
        raise Candle::DeviceError, "no kernel" unless device.kind == :cpu
      end
    end
  end

  it "knows the best device" do
    expect(described_class.best_device).to eq(Candle::Device.best)
    expect(described_class.best_device_for(:reranker)).to eq(Candle::Device.best)
    expect { described_class.best_device_for(:toaster) }.to raise_error(ArgumentError, /:embedding_model/)
  end

  it "says that the kinds of models with a class run on every kind of device, and no others" do
    classes = { vlm: :VLM, t5: :Seq2Seq, clip: :CLIP }
    %w[cpu cuda cuda:1 metal].product(described_class::MODEL_TYPES) do |device, type|
      there = !classes.key?(type) || Candle.const_defined?(classes[type])
      expect(described_class.supports_model?(device, type)).to be(there), "#{type} on #{device}"
    end
    expect(described_class.supports_model?(Candle::Device.cpu, "llm")).to be(true)
    expect { described_class.supports_model?("cpu", :toaster) }.to raise_error(ArgumentError)
    expect { described_class.supports_model?("toaster", :llm) }.to raise_error(Candle::DeviceError)
  end

  it "builds on the best device" do
    %i[source model_id model_path].each do |name|
      model = described_class.create_with_best_device(Candle::EmbeddingModel, :embedding_model, name => path)
      expect(model.embed("a").size).to eq(32)
      expect(model.device).to eq(Candle::Device.best)
    end
    expect(log.string).to be_empty
  end

  it "falls back to the CPU, warns once and says so in the report" do
    unless Candle::Device.available_devices.include?("cuda:7")
      model = described_class.create_with_best_device(Candle::EmbeddingModel, :embedding_model, device: "cuda:7",
                                                                                                source: path)
      expect(model.device.kind).to eq(:cpu)
      expect(model.device_report).to include(requested: "cuda:7", actual: "cpu")
      expect(model.device_report[:fallbacks].first).to start_with("cuda:7: ")
      expect(log.string.scan("the CPU takes over").size).to eq(1)
    end
  end

  it "falls back when the first forward fails" do
    model = described_class.create_with_best_device(fragile, :llm, device: "metal", source: "x", max_length: 3)
    expect(model.device.kind).to eq(:cpu)
    expect(model.given).to eq(["x", { max_length: 3 }])
    expect(log.string).to match(/Fragile does not run on metal.*no kernel/)
  end

  it "raises instead when told to be strict" do
    expect { described_class.create_with_best_device(fragile, :llm, device: "metal", strict: true) }
      .to raise_error(Candle::DeviceError, "no kernel")
    expect(log.string).to be_empty
  end

  it "does not hide what no device would change" do
    expect { described_class.create_with_best_device(Candle::NER, :ner, device: "cuda:7", source: path) }
      .to raise_error(Candle::UnsupportedModelError)
    expect do
      described_class.create_with_best_device(Candle::NER, :toaster, source: path)
    end.to raise_error(ArgumentError)
    expect { described_class.create_with_best_device(Candle::NER, :ner, device: "toaster", source: path) }
      .to raise_error(Candle::DeviceError, /toaster/)
  end
end
