# frozen_string_literal: true

require "spec_helper"

require_relative "../../rakelib/support/written_files"

RSpec.describe WrittenFiles do
  # A reader of GGUF files that is this library itself; `other` is read instead of the file.
  reader = Class.new do
    def initialize(other = nil) = @other = other

    def open(path)
      @llm = Candle::LLM.from_pretrained(@other || path, device: "cpu")
      yield self
    ensure
      @llm&.close
    end

    def logprobs(ids)
      @llm.logprobs(@llm.tokenizer.decode(ids)).filter_map { |token| token[:logprob] }
    end

    def greedy(ids, count)
      config = Candle::GenerationConfig.deterministic(max_length: count)
      @llm.complete(@llm.tokenizer.decode(ids), config: config).token_ids
    end
  end

  def problems(reader, **chosen)
    found = nil
    expect { found = described_class.new(reader: reader, **chosen).run }.to output.to_stdout
    found
  end

  it "finds nothing where both read the same" do
    expect(problems(reader.new, models: %w[llama qwen3], types: %w[f32 q4_k_m iq2_xxs])).to eq([])
  end

  it "names the files that another model would be" do
    other = File.join(described_class::DECODERS, "llama")
    found = problems(reader.new(other), models: %w[llama granite], seeded: %w[olmo], types: %w[q8_0])
    expect(found).to match([/\Agranite as f32: a log probability differs/, /\Aolmo as f32: a log probability differs/,
                            /\Allama of 256 columns as q8_0: /])
  end

  it "knows all models by their folders" do
    expect(described_class::MODELS).to all(satisfy { |name| Dir.exist?(File.join(described_class::DECODERS, name)) })
  end
end
