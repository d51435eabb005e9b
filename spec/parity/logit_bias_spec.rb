# frozen_string_literal: true

RSpec.describe Candle::LogitBias do
  root = File.expand_path("../fixtures", __dir__)
  cases = JSON.parse(File.read("#{root}/logit_bias.json"))
  models = Hash.new do |loaded, name|
    klass = name.start_with?("seq2seq") ? Candle::Seq2Seq : Candle::LLM
    loaded[name] = klass.from_pretrained("#{root}/tiny/#{name}", device: "cpu", dtype: :f32)
  end
  complete = lambda do |model, found, **more|
    options = found["options"].transform_keys(&:to_sym)
    models[model].complete(found["text"], logit_bias: found["bias"], temperature: 0, max_length: 12, **options, **more)
  end

  cases.each do |found|
    it "chooses the tokens of transformers: #{found.slice("model", "bias", "options")}" do
      expect(complete.call(found["model"], found).token_ids).to eq(found["token_ids"])
    end
  end

  it "says the same with speculative decoding and in a batch" do
    of_llama = cases.select { |found| found["model"] == "decoders/llama" }
    of_llama.each do |found|
      expect(complete.call(found["model"], found, speculative: :lookup).token_ids).to eq(found["token_ids"])
    end
    together = of_llama.map { |found| Thread.new { complete.call(found["model"], found).token_ids } }
    expect(together.map(&:value)).to eq(of_llama.map { |found| found["token_ids"] })
  end
end
