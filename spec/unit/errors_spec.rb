# frozen_string_literal: true

require "fileutils"
require "json"
require "tmpdir"

RSpec.describe Candle::Error do
  names = %i[ModelNotFoundError DownloadError OfflineError UnsupportedModelError CorruptModelError DeviceError
             OutOfMemoryError TokenizerError InvalidInputError GenerationError StructuredOutputError InterruptedError
             AgentMaxIterationsError MCPError InternalError]

  names.each do |name|
    it "is the parent of #{name}, so that rescue RuntimeError works" do
      error = Candle.const_get(name)
      expect(error.superclass).to be(described_class)
      expect { raise error, "why" }.to raise_error(RuntimeError, "why")
    end
  end

  it "has no other children" do
    children = Candle.constants.map { |name| Candle.const_get(name) }
                     .select { |constant| constant.is_a?(Class) && constant < described_class }
    found = children.map { |child| child.name.split("::").last.to_sym }
    expect(found).to match_array([*names, :AgentBudgetError, :BulkGenerationError, :MCPTimeoutError,
                                  :MCPToolError])
    expect([Candle::MCPTimeoutError, Candle::MCPToolError].map(&:superclass)).to all(be(Candle::MCPError))
    expect(Candle::AgentBudgetError.superclass).to be(Candle::AgentMaxIterationsError)
    expect(Candle::BulkGenerationError.superclass).to be(Candle::GenerationError)
  end

  it "keeps the partial text of a structured answer" do
    error = Candle::StructuredOutputError.new("cut off")
    error.partial = "{\"a\":"
    expect(error.partial).to eq("{\"a\":")
  end

  describe "files that stand where a model's should" do
    # A copy of a tiny model in which one file is another.
    def with(name, content)
      Dir.mktmpdir do |directory|
        FileUtils.cp_r("#{TinyModels.path("bert-sentence")}/.", directory)
        File.write(File.join(directory, name), content)
        yield directory
      end
    end

    def load(directory)
      Candle::EmbeddingModel.from_pretrained(directory, device: "cpu")
    end

    %w[aqlm vptq].each do |method|
      it "calls weights that #{method} packed by their name" do
        config = JSON.parse(File.read(File.join(TinyModels.path("bert-sentence"), "config.json")))
        packed = config.merge("quantization_config" => { "quant_method" => method, "bits" => 4 })
        with("config.json", JSON.generate(packed)) do |directory|
          expect { load(directory) }
            .to raise_error(Candle::UnsupportedModelError, /config.json.*quantized by #{method}.*GGUF/m)
        end
      end
    end

    it "knows a git-lfs pointer and an HTML page" do
      pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:#{"0" * 64}\nsize 90000000\n"
      with("model.safetensors", pointer) do |directory|
        expect { load(directory) }.to raise_error(Candle::CorruptModelError, /is a git-lfs pointer.*git lfs pull/)
      end
      with("config.json", "<!DOCTYPE html><html><title>Sign in</title></html>") do |directory|
        expect { load(directory) }.to raise_error(Candle::CorruptModelError, /is an HTML page.*fetch it again/m)
      end
    end
  end
end
