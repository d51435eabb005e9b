# frozen_string_literal: true

require "tmpdir"

require_relative "../../rakelib/support/attack/outliers"

RSpec.describe "What a model says it runs" do
  fixtures = TinyModels::ROOT
  llama = File.join(fixtures, "decoders", "llama")
  bert = File.join(fixtures, "bert")

  def kernels(model)
    model.device_report.fetch(:kernels)
  end

  it "names the kernels of a decoder and of an encoder, and no others" do
    decoder = kernels(Candle::LLM.from_pretrained(llama, device: "cpu"))
    expect(decoder.keys).to contain_exactly("activation", "attention", "linear", "rms_norm", "rope")
    encoder = kernels(Candle::EmbeddingModel.from_pretrained(bert, device: "cpu"))
    expect(encoder.keys)
      .to contain_exactly("activation", "attention", "l2_normalize", "layer_norm", "linear", "pooling")
    expect(decoder.values + encoder.values).to all(start_with("cpu "))
  end

  it "leaves out the pooling that needs no kernel" do
    model = Candle::EmbeddingModel.from_pretrained(bert, device: "cpu", pooling: "cls", normalize: false)
    expect(kernels(model).keys).not_to include("pooling", "l2_normalize")
  end

  it "says what the weights are made of" do
    linear = ->(dtype) { kernels(Candle::EmbeddingModel.from_pretrained(bert, device: "cpu", dtype:))["linear"] }
    expect(linear.call(:f32)).to match(/\Acpu \w+ f32\z/)
    expect(linear.call(:bf16)).to match(/\Acpu \w+ bf16\z/)
    expect(linear.call(:int8)).to match(/\Acpu \w+ int8\z/)
  end

  def in_another_process(script, environment)
    lib = File.expand_path("../../lib", __dir__)
    IO.popen([environment, RbConfig.ruby, "-I", lib, "-r", "candle", "-e", script], &:read)
  end

  it "follows the instruction set that is forced" do
    script = "puts Candle::LLM.from_pretrained(#{llama.dump}, device: 'cpu').device_report[:kernels]['rms_norm']"
    expect(in_another_process(script, "CANDLE_CPU_ISA" => "scalar")).to eq("cpu scalar\n")
  end

  it "says whether tiles multiply f32, as they do unless CANDLE_F32=exact forbids it" do
    Dir.mktmpdir do |folder|
      # Tiles take layers of at least 128 inputs.
      model = OutlierModel.new(File.join(fixtures, "bert-sentence"), folder)
      script = <<~RUBY
        %i[f32 bf16].each do |dtype|
          model = Candle::EmbeddingModel.from_pretrained(#{model.folder.dump}, device: "cpu", dtype:)
          puts model.device_report[:kernels]["linear"]
        end
      RUBY
      f32, bf16 = in_another_process(script, "CANDLE_F32" => nil).lines
      expect(f32.include?("amx")).to eq(bf16.include?("amx"))
      exact, = in_another_process(script, "CANDLE_F32" => "exact").lines
      expect(exact).to match(/\Acpu (?!amx)\w+ f32$/)
    end
  end

  describe "weight_bytes" do
    it "counts what the weights take in the dtype that holds them" do
      bytes = lambda do |dtype, setting|
        script = "print Candle::EmbeddingModel.from_pretrained(#{bert.dump}, device: 'cpu', dtype: :#{dtype})" \
                 ".model_info.fetch(:weight_bytes)"
        in_another_process(script, "CANDLE_F32" => setting).to_i
      end
      exact = bytes.call(:f32, "exact")
      expect(bytes.call(:bf16, nil)).to be_within(2).percent_of(exact / 2)
      expect(bytes.call(:int8, nil)).to be < bytes.call(:f32, nil)
      expect(bytes.call(:f32, nil)).to be_between(3 * exact / 4, exact)
    end

    it "counts quantized blocks as they are, not as the numbers they stand for" do
      path = File.join(fixtures, "gguf-decoders", "quantized", "model.gguf")
      info = Candle::LLM.from_pretrained(path, device: "cpu").model_info
      expect(info.fetch(:weight_bytes)).to be < 2 * info.fetch(:parameters)
      expect(info.fetch(:weight_bytes)).to be <= 1.1 * File.size(path)
    end
  end
end
