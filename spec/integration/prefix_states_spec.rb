# frozen_string_literal: true

RSpec.describe "The prefix cache of models whose layers keep states" do
  template = "{% if tools %}{{ tools }}{% endif %}{% for message in messages %}{{ message.role[0] }}:" \
             "{{ message.content }};{% endfor %}a:"
  # A page of tokens and some; what a user says takes another page, so that a prompt does not end in this one.
  system = { role: "system", content: "be brief and say what is asked for, no more and no less, and nothing of others" }

  def load(folder)
    path = File.join(folder, "config.json")
    config = JSON.parse(File.read(path))
    File.write(path, JSON.generate(config.merge("max_position_embeddings" => 1024)))
    Candle::LLM.from_pretrained(folder, device: "cpu", dtype: :f32)
  end

  %w[mamba rwkv granitemoehybrid qwen3_next].each do |name|
    it "goes on from a system prompt at the second request (#{name})" do
      SeededModels.checkpoint(name) do |folder|
        llm, fresh = Array.new(2) { load(folder) }
        asked = lambda do |model, *messages, **more|
          messages = messages.map { |message| String === message ? { role: "user", content: message } : message }
          model.complete(messages, temperature: 0, max_length: 6, logprobs: 2, chat_template: template, **more)
        end
        before = llm.tokenizer.encode("s:#{system[:content]};u:", add_special_tokens: false).size
        expect(before).to be_between(66, 120)
        expect(asked.call(llm, system, "the dog is in the house, #{"and then, " * 12}").usage.cached_tokens).to eq(0)
        ["a cat, #{"or a mouse, " * 8}", "who is there"].each do |text|
          found = asked.call(llm, system, text)
          expected = asked.call(fresh, system, text, reset_cache: :all)
          expect(found.usage.cached_tokens).to eq(64)
          expect(expected.usage.cached_tokens).to eq(0)
          expect(found).to eq(expected)
          expect(found.logprobs).to eq(expected.logprobs)
        end
      end
    end
  end
end
