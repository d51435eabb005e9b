# frozen_string_literal: true

RSpec.describe "logit_bias" do
  let(:llm) { Candle::LLM.from_pretrained(TinyModels.path("decoders/llama"), device: "cpu") }

  def ids(**options)
    llm.complete("the dog", temperature: 0, max_length: 4, **options).token_ids
  end

  it "takes ids, digits, tokens and texts of one token" do
    id = llm.tokenizer.encode("the", add_special_tokens: false).first
    token = llm.tokenizer.id_to_token(id)
    [id, id.to_s, token, token.to_sym, llm.tokenizer.decode([id])].each do |key|
      expect(ids(logit_bias: { key => 100 })).to eq([id] * 4)
    end
  end

  it "changes nothing where it is empty, and bans tokens" do
    plain = ids
    expect(ids(logit_bias: {})).to eq(plain)
    expect(ids(logit_bias: nil)).to eq(plain)
    expect(ids(logit_bias: plain.to_h { |id| [id, -100] }) & plain).to be_empty
  end

  it "keeps the log probabilities of the model" do
    plain = llm.complete("the dog", temperature: 0, max_length: 1, logprobs: 2).logprobs.first
    second = plain[:top][1]
    biased = llm.complete("the dog", temperature: 0, max_length: 1, logprobs: 2, logit_bias: { second[:id] => 100 })
    expect(biased.logprobs.first).to include(id: second[:id], logprob: second[:logprob], top: plain[:top])
  end

  it "never allows what a constraint forbids" do
    zero = llm.tokenizer.token_to_id("0") || llm.tokenizer.encode("0", add_special_tokens: false).last
    found = llm.generate_regex("the dog", pattern: /[ab]{3}/, logit_bias: { zero => 100 }, temperature: 0)
    expect(found).to match(/\A[ab]{3}\z/)
  end

  it "is a field of configs: kept by with, compared, written as JSON" do
    config = Candle::GenerationConfig.deterministic(logit_bias: { "5" => 1 })
    expect(config.logit_bias).to eq(5 => 1.0)
    expect(config).to eq(Candle::GenerationConfig.deterministic(logit_bias: { 5 => 1.0 }))
    expect(config.with(top_k: 3).logit_bias).to be_frozen.and eq(5 => 1.0)
    expect(JSON.parse(config.to_json)["logit_bias"]).to eq("5" => 1.0)
  end

  {
    [5] => /logit_bias must be a Hash of tokens and biases/,
    { 5 => 101 } => /logit_bias of 5 must be a number in -100..100, not 101/,
    { 5 => Float::NAN } => /must be a number/,
    { 5 => "1" } => /must be a number/,
    { -1 => 1 } => /token of logit_bias must be an id or a text, not -1/,
    { 2**40 => 1 } => /must be an id/,
    { "" => 1 } => /must be an id or a text/,
    { nil => 1 } => /a token of logit_bias must be a String or a Symbol/,
    { 5 => 1, "5" => 2 } => /names token 5 twice/,
    { "the dog" => 1 } => /takes single tokens, and "the dog" is \d+ of them/
  }.each do |given, message|
    it "refuses #{given}" do
      expect { ids(logit_bias: given) }.to raise_error(ArgumentError, message)
    end
  end

  it "refuses tokens that the model does not have" do
    expect { ids(logit_bias: { 4_000_000 => 1 }) }
      .to raise_error(Candle::InvalidInputError, /logit_bias names token 4000000, and the model's tokens are 0 to/)
  end
end
