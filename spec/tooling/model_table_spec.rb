# frozen_string_literal: true

require_relative "../../rakelib/support/model_table"

RSpec.describe Tasks::ModelTable do
  it "has written what this build supports" do
    described_class.new(Candle.supported_models).pages.each do |path, text|
      expect(File.read(path)).to eq(text), "#{path} is out of date: rake doc:models"
    end
  end

  it "has a row for every type and says what it was compared with" do
    row = described_class.new([{ model_type: "llama", tasks: %i[llm], architectures: %w[llama] },
                               { model_type: "unheard-of", tasks: %i[llm embedding], architectures: [] }])
    expect(row.pages.fetch(described_class::PAGE)).to include("| `llama` | llm | `llama` | transformers |\n" \
                                                             "| `unheard-of` | llm, embedding | – | – |\n")
    expect(row.pages.fetch(described_class::README)).to include("2 model types")
  end
end
