# frozen_string_literal: true

require_relative "../../rakelib/support/model_table"

RSpec.describe Tasks::ModelTable do
  it "has written what this build supports" do
    described_class.new(described_class.supported).pages.each do |path, text|
      expect(File.read(path)).to eq(text), "#{path} is out of date: rake doc:models"
    end
  end

  it "has a row for every type and says what it was compared with" do
    row = described_class.new([{ model_type: "llama", tasks: %i[llm], formats: %w[safetensors gguf],
                                 architectures: %w[llama], projectors: [], devices: %w[cpu cuda] },
                               { model_type: "unheard-of", tasks: %i[llm embedding], formats: %w[safetensors],
                                 architectures: [], projectors: [], devices: %w[cpu] }])
    expect(row.pages.fetch(described_class::PAGE))
      .to include("| `llama` | llm | safetensors, gguf | `llama` | – | cpu, cuda | transformers |\n" \
                  "| `unheard-of` | llm, embedding | safetensors | – | – | cpu | – |\n")
    expect(row.pages.fetch(described_class::README)).to include("2 model types")
  end

  it "says which vision-language models read no images from GGUF files" do
    facts = { tasks: %i[llm vlm], formats: %w[safetensors gguf], architectures: %w[llama], devices: %w[cpu] }
    row = described_class.new([{ model_type: "blind", projectors: [], **facts },
                               { model_type: "sighted", projectors: %w[mlp], **facts }])
    expect(row.pages.fetch(described_class::PAGE))
      .to include("| `blind` | llm, vlm | safetensors, gguf (texts only) | `llama` | – | cpu | – |\n" \
                  "| `sighted` | llm, vlm | safetensors, gguf | `llama` | `mlp` | cpu | – |\n")
  end
end
