# frozen_string_literal: true

require "json"

# What llama.cpp made of the same files: spec/fixtures/make_llama_cpp_reference.py.
module LlamaCppReference
  RECORD = JSON.parse(File.read(File.expand_path("../fixtures/llama_cpp_reference.json", __dir__))).freeze

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
    expect(model.tokenizer.encode(LlamaCppReference::RECORD["text"])).to eq(reference["text_ids"])
    expect(model.perplexity(LlamaCppReference::RECORD["text"])).to be_within(1).percent_of(reference["perplexity"])
  end

  it "continues ten prompts alike" do
    greedy = Candle::GenerationConfig.deterministic(max_length: 32)
    LlamaCppReference::RECORD["prompts"].zip(reference["runs"]) do |prompt, run|
      expect(model.tokenizer.encode(prompt)).to eq(run["prompt_ids"])
      completion = model.complete(prompt, config: greedy, logprobs: 10)
      expect(LlamaCppReference.gap(completion, run["token_ids"]))
        .to be < 0.05, "#{prompt.inspect}: #{completion.token_ids} instead of #{run["token_ids"]}"
    end
  end
end
