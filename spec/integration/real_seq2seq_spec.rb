# frozen_string_literal: true

require "json"

# Real weights of T5 against what transformers makes of them (spec/fixtures/make_real_reference.py).
RSpec.describe "Real encoder-decoders" do
  reference = JSON.parse(File.read(File.expand_path("../fixtures/real_reference.json", __dir__), encoding: "UTF-8"))
  reference = reference.fetch("seq2seq")

  describe reference["id"] do
    include_context "with the real model", reference["id"]

    let(:model) { Candle::Seq2Seq.from_pretrained(real_path, device: "cpu") }

    { "token by token" => ["greedy", {}], "with beams" => ["beams", { num_beams: 4 }] }.each do |way, (key, options)|
      it "writes #{way} what transformers writes, one by one and together" do
        prompts = reference["written"].map { |entry| entry["prompt"] }
        wanted = reference["written"].map { |entry| entry[key]["ids"] }
        alone = prompts.map { |prompt| model.complete(prompt, max_length: 24, **options) }
        expect(alone.map(&:token_ids)).to eq(wanted)
        expect(alone.map(&:text)).to eq(reference["written"].map { |entry| entry[key]["text"] })
        together = model.complete(prompts, max_length: 24, **options)
        expect(together.map(&:token_ids)).to eq(wanted)
      end
    end

    it "translates" do
      expect(model.generate("translate English to German: The house is wonderful.")).to eq("Das Haus ist wunderbar.")
    end
  end
end
