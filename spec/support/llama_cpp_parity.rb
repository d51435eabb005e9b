# frozen_string_literal: true

require "json"

# What llama.cpp made of the same files: spec/fixtures/make_llama_cpp_reference.py.
module LlamaCppReference
  RECORD = JSON.parse(File.read(File.expand_path("../fixtures/llama_cpp_reference.json", __dir__))).freeze

  # What transformers makes of the expanded weights, in f32: spec/fixtures/make_expanded_reference.py.
  EXPANDED = JSON.parse(File.read(File.expand_path("../fixtures/expanded_reference.json", __dir__))).freeze

  module_function

  # How far apart two greedy runs are where they first differ: how much more likely we found our token than the
  # reference's.
  #
  # @param completion [Candle::Completion] with log probabilities
  # @param token_ids [Array<Integer>] the reference's tokens
  # @return [Float] 0 when they do not differ
  def gap(completion, token_ids)
    ours, theirs = completion.token_ids.zip(token_ids).find { |one, other| one != other }
    return 0.0 unless ours

    step = completion.token_ids.zip(token_ids).index([ours, theirs])
    found = completion.logprobs[step]
    other = found[:top].find { |entry| entry[:id] == theirs }
    other ? found[:logprob] - other[:logprob] : Float::INFINITY
  end
end

RSpec.shared_examples "llama.cpp's equal" do |id|
  let(:model) { Candle::LLM.from_pretrained(real_path, device: "cpu") }
  let(:reference) { LlamaCppReference::RECORD.fetch(id) }

  it "reads texts as the same tokens and finds them as likely" do
    expect(model.tokenizer.encode(reference["text"])).to eq(reference["text_ids"])
    expect(model.perplexity(reference["text"])).to be_within(1).percent_of(reference["perplexity"])
  end

  # llama.cpp rounds the other factor of a product to bytes, and may leave the path that the exact weights take. Where
  # it does, the exact path is the one to be on.
  it "continues ten prompts alike, or as the expanded weights do" do
    greedy = Candle::GenerationConfig.deterministic(max_length: 32)
    exact = LlamaCppReference::EXPANDED.fetch(id, {}).fetch("runs", [])
    LlamaCppReference::RECORD["prompts"].zip(reference["runs"], exact) do |prompt, run, expanded|
      expect(model.tokenizer.encode(prompt)).to eq(run["prompt_ids"])
      completion = model.complete(prompt, config: greedy, logprobs: 10)
      gaps = [run["token_ids"], expanded].compact.map { |token_ids| LlamaCppReference.gap(completion, token_ids) }
      expect(gaps.first < 0.05 || gaps.drop(1).any? { |gap| gap < 0.01 })
        .to be(true), "#{prompt.inspect}: #{completion.token_ids} instead of #{run["token_ids"]}, gaps #{gaps}"
    end
  end
end
