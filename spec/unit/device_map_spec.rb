# frozen_string_literal: true

RSpec.describe "Where the layers of a language model are" do
  llama = TinyModels.path("decoders/llama")
  # A GPU, where the suite has one: then layers really are on two devices.
  main = Candle::Device.best.to_s
  load = ->(**options) { Candle::LLM.from_pretrained(llama, device: main, dtype: :f32, **options) }
  greedy = { max_length: 10, temperature: 0 }

  it "says so, and writes the same text" do
    whole = load.call
    expect(whole.device_report[:layers]).to eq(main => 2)
    text = whole.generate("the dog is", **greedy)
    [{ gpu_layers: 1 }, { device_map: { Candle::Device.best => 1, "cpu" => 1 } }, { gpu_layers: 0 }, { gpu_layers: 99 },
     { device_map: :auto }, { device_map: "auto", gpu_memory: "1GB" }].each do |options|
      model = load.call(**options)
      expect(model.device_report[:layers].values.sum).to eq(2)
      expect(model.generate("the dog is", **greedy)).to eq(text), options.inspect
    end
  end

  it "has the first device named for what stands beside the layers" do
    model = Candle::LLM.from_pretrained(llama, device_map: { Candle::Device.cpu => 2 })
    expect(model.device).to eq(Candle::Device.cpu)
    expect(model.model_info[:layers_by_device]).to eq("cpu" => 2)
  end

  it "refuses maps that say nothing or contradict themselves" do
    [{ device_map: :auto, gpu_layers: 1 }, { device_map: {} }, { device_map: :best }, { device_map: 3 },
     { device_map: { "cpu" => nil } }, { device_map: { "cpu" => 1.5 } }, { gpu_layers: -1 }, { gpu_layers: "all" },
     { gpu_memory: "1GB" }, { device_map: :auto, gpu_memory: "much" }].each do |options|
      expect { load.call(**options) }.to raise_error(ArgumentError), options.inspect
    end
    expect { load.call(device_map: { "cpu" => 1 }) }.to raise_error(Candle::InvalidInputError, /names 1 layers/)
    expect { load.call(device_map: { "tpu" => 2 }) }.to raise_error(Candle::DeviceError, /unknown device/)
    expect { load.call(device_map: :auto, gpu_memory: 10) }
      .to raise_error(Candle::OutOfMemoryError, /embeddings and the head/)
  end
end
