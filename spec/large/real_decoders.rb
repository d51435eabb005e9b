# frozen_string_literal: true

# `rake spec:large`: models too large to be fetched for every run of the suite.
%w[karpathy/stories15M ggml-org/gemma-3-270m-GGUF].each do |id|
  RSpec.describe id do
    let(:real_path) { RealModels.path(id) }
    include_examples "llama.cpp's equal", id
  end
end
