# frozen_string_literal: true

require "json"

# What llama.cpp made of the same files: spec/fixtures/make_llama_cpp_reference.py.
module LlamaCppReference
  RECORD = JSON.parse(File.read(File.expand_path("../fixtures/llama_cpp_reference.json", __dir__))).freeze

  module_function

  # How far apart two greedy runs are where they first differ: the distance, in the reference's log probabilities,
  # between its token and ours.
  #
  # @param found [Array<Integer>] our tokens
  # @param run [Hash] the reference's
  # @return [Float] 0 when they do not differ
  def gap(found, run)
    step = run["token_ids"].each_index.find { |index| found[index] != run["token_ids"][index] }
    return 0.0 if step.nil? || step >= found.size

    top = run["top"][step].to_h
    top.fetch(run["token_ids"][step]) - top.fetch(found[step], -Float::INFINITY)
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
      found = model.complete(prompt, config: greedy).token_ids
      expect(LlamaCppReference.gap(found, run))
        .to be < 0.05, "#{prompt.inspect}: #{found} instead of #{run["token_ids"]}"
    end
  end
end
