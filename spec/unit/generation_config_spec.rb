# frozen_string_literal: true

RSpec.describe Candle::GenerationConfig do
  it "takes a Hash with String or Symbol keys, or keywords" do
    expected = described_class.new(max_length: 7, seed: 3)
    expect(described_class.new({ "max_length" => 7, seed: 3 })).to eq(expected)
    expect(described_class.new({ max_length: 9 }, max_length: 7, seed: 3)).to eq(expected)
  end

  it "knows max_new_tokens as another name of max_length" do
    expect(described_class.new(max_new_tokens: 5).max_length).to eq(5)
    expect(described_class.default.with(max_new_tokens: 6).max_new_tokens).to eq(6)
  end

  it "has presets that can be changed" do
    expect(described_class.deterministic.temperature).to eq(0.0)
    expect(described_class.creative(temperature: 0.9).temperature).to eq(0.9)
    expect(described_class.balanced.to_h).to include(temperature: 0.7, top_p: 0.9, top_k: 40)
    expect(described_class.default.max_length).to eq(512)
  end

  it "knows max_tokens too, in every place that takes fields" do
    expect(described_class.new("max_tokens" => 5).max_tokens).to eq(5)
    expect(described_class.balanced(max_tokens: 6).max_length).to eq(6)
    expect(described_class.default.with(max_tokens: 7).max_length).to eq(7)
  end

  it "has a seed that repeats the run, drawn where none was given" do
    config = described_class.balanced
    expect(config.seed).to be_an(Integer)
    expect(config.seed).not_to eq(described_class.balanced.seed)
    expect(config.with(top_k: 3).seed).to eq(config.seed)
    expect(config.with(seed: 9).seed).to eq(9)
    expect(config.to_h[:seed]).to eq(config.seed)
    expect(config.settings[:seed]).to eq(config.seed)
    expect(described_class.new(seed: nil).seed).to be_an(Integer)
    expect { described_class.new(seed: "7") }.to raise_error(ArgumentError, 'seed must be an Integer, not "7"')
  end

  it "is a value: equal, a key of Hashes, matched by patterns, written as JSON" do
    one = described_class.balanced(max_length: 3)
    other = described_class.balanced(max_length: 3)
    expect(one).to eq(other).and eql(other)
    expect({ one => 1 }[other]).to eq(1)
    expect(one).not_to eq(one.with(seed: 1))
    expect(described_class.deterministic(seed: 5)).not_to eq(described_class.deterministic(seed: 6))
    case one
    in { max_length: Integer => length } then expect(length).to eq(3)
    end
    expect(JSON.parse(one.to_json)).to include("max_length" => 3, "seed" => one.seed, "constraint" => nil)
    expect(JSON.parse(JSON.generate(one.with(constraint: /yes|no/)))["constraint"]).to include("yes")
  end

  it "is frozen and copied by with" do
    config = described_class.balanced
    expect(config).to be_frozen
    expect(config.with(top_k: nil).top_k).to be_nil
    expect(config.top_k).to eq(40)
  end

  it "shows what differs from the defaults" do
    expect(described_class.new(seed: 1).inspect).to eq("#<Candle::GenerationConfig seed=1>")
  end

  {
    { temperatur: 1 } => /unknown generation option temperatur\. Did you mean temperature:\? Known are max_length/,
    { max_length: -1 } => /max_length must be an Integer of at least 0, not -1/,
    { temperature: -0.1 } => /temperature must be a number/,
    { temperature: "hot" } => /temperature must be a number/,
    { top_p: 1.1 } => /top_p must be a number in 0..1/,
    { top_k: 0 } => /top_k must be an Integer of at least 1/,
    { repetition_penalty: 0 } => /repetition_penalty/
  }.each do |fields, message|
    it "refuses #{fields}" do
      expect { described_class.new(fields) }.to raise_error(ArgumentError, message)
    end
  end
end
