# frozen_string_literal: true

RSpec.describe Candle::Session do
  let(:template) { "{% for message in messages %}{{ message.role[0] }}:{{ message.content }};{% endfor %}a:" }
  let(:greedy) { { temperature: 0, max_length: 12, debug_tokens: true } }

  # Long enough for several turns.
  def load(folder)
    path = File.join(folder, "config.json")
    config = JSON.parse(File.read(path))
    File.write(path, JSON.generate(config.merge("max_position_embeddings" => 1024)))
    Candle::LLM.from_pretrained(folder, device: "cpu", dtype: :f32)
  end

  # A file holds the messages; the states of layers are computed again.
  %w[falcon_h1 granitemoehybrid lfm2 mamba qwen3_next rwkv].each do |name|
    it "goes on alike after it was saved and loaded, where layers keep states (#{name})" do
      SeededModels.checkpoint(name) do |folder|
        file = File.join(folder, "saved")
        first = described_class.new(load(folder), chat_template: template)
        first.say("some words to begin with, more than a page of them, so that a state is saved", **greedy)
        first.save(file)
        second = described_class.load(load(folder), file)
        said = [first, second].map { |session| session.say("and more", **greedy) }
        expect(said.first).to eq(said.last)
      end
    end
  end
end
