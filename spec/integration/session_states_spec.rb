# frozen_string_literal: true

RSpec.describe Candle::Session do
  let(:template) { "{% for message in messages %}{{ message.role[0] }}:{{ message.content }};{% endfor %}a:" }
  let(:greedy) { { temperature: 0, max_length: 12, logprobs: 3 } }

  # Long enough for several turns.
  def load(folder)
    path = File.join(folder, "config.json")
    config = JSON.parse(File.read(path))
    File.write(path, JSON.generate(config.merge("max_position_embeddings" => 1024)))
    Candle::LLM.from_pretrained(folder, device: "cpu", dtype: :f32)
  end

  def said(session, text)
    session.say(text, **greedy)
    session.completion.to_h.slice(:token_ids, :logprobs, :finish_reason)
  end

  # A file holds the messages; keys, values and states of layers are computed again.
  %w[bailing_hybrid bamba falcon_h1 falcon_mamba granitemoehybrid jamba kimi_linear lfm2 lfm2_moe mamba mamba2 minimax
     nemotron_h olmo_hybrid qwen3_5_moe_text qwen3_5_text qwen3_next recurrent_gemma rwkv zamba2].each do |name|
    it "goes on with the same numbers after it was saved and loaded, where layers keep states (#{name})" do
      SeededModels.checkpoint(name) do |folder|
        file = File.join(folder, "saved")
        first = described_class.new(load(folder), chat_template: template)
        said(first, "some words to begin with, more than a page of them, so that a state is saved")
        first.save(file)
        second = described_class.load(load(folder), file)
        expect(second.messages).to eq(first.messages)
        2.times do |turn|
          expected = said(first, "and more #{turn}")
          expect(first.usage.cached_tokens).to be >= 64
          expect(said(second, "and more #{turn}")).to eq(expected)
          expect(expected[:logprobs].size).to eq(expected[:token_ids].size)
        end
      end
    end
  end
end
