# frozen_string_literal: true

require "stringio"

# The comparison with the CPU on load. Damaged devices are made in the engine's own tests.
RSpec.describe "The self-check" do
  models = { Candle::EmbeddingModel => "bert-sentence", Candle::Reranker => "bert-reranker",
             Candle::NER => "bert-token", Candle::Classifier => "bert-sequence",
             Candle::MaskedLM => "bert-masked", Candle::LLM => "decoders/llama" }

  models.each do |klass, name|
    it "of #{klass} runs when asked for, and on CPUs only then" do
      path = TinyModels.path(name)
      expect(klass.from_pretrained(path, device: "cpu", verify: true).model_info[:verified]).to be(true)
      expect(klass.from_pretrained(path, device: "cpu").model_info[:verified]).to be(false)
      expect(klass.from_pretrained(path, verify: false).model_info[:verified]).to be(false)
    end
  end

  describe "when it fails" do
    let(:path) { TinyModels.path("bert") }
    let(:log) { StringIO.new }

    around do |example|
      logger = Candle.logger
      Candle.configure_logging { |config| config.output = log }
      example.run
    ensure
      Candle.logger = logger
    end

    # A machine whose GPU opens and computes nonsense.
    before do
      allow(Candle::Device).to receive(:best).and_return(Candle::Device.parse("cuda:0"))
      original = Candle::EmbeddingModel.method(:_load)
      allow(Candle::EmbeddingModel).to receive(:_load) do |source, settings|
        raise Candle::DeviceError, "the self-check failed: NaN" unless settings[:device].to_s == "cpu"

        original.call(source, settings)
      end
    end

    it "replaces a GPU that was only the best, with a warning and a report" do
      [nil, :best, "best"].each do |device|
        model = Candle::EmbeddingModel.from_pretrained(path, device: device)
        expect(model.device_report).to include(requested: "best", actual: "cpu",
                                               fallbacks: ["cuda:0: the self-check failed: NaN"])
      end
      expect(log.string.scan("does not run on cuda:0, the CPU takes over: the self-check failed: NaN").size).to eq(3)
    end

    it "raises for a GPU that was named" do
      ["cuda", "cuda:0", Candle::Device.parse("cuda:0")].each do |device|
        expect { Candle::EmbeddingModel.from_pretrained(path, device: device) }
          .to raise_error(Candle::DeviceError, /self-check/)
      end
      expect(log.string).to be_empty
    end

    it "makes create_with_best_device fall back, unless that is strict" do
      create = lambda do |**options|
        Candle::DeviceUtils.create_with_best_device(Candle::EmbeddingModel, :embedding_model,
                                                    device: "cuda", source: path, **options)
      end
      expect(create.call.device_report).to include(requested: "cuda:0", actual: "cpu")
      expect(log.string.scan("the CPU takes over").size).to eq(1)
      expect { create.call(strict: true) }.to raise_error(Candle::DeviceError, /self-check/)
    end
  end
end
