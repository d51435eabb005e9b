# frozen_string_literal: true

# Objects move in memory when Ruby compacts its heap: between calls, in the middle of a stream, and at any moment where
# Ruby can do it by itself without crashing.
RSpec.describe "Compaction of Ruby's heap", if: GC.respond_to?(:compact) do
  # One object of each class, and what it says; the same again after every object was moved.
  def script(setup, moved)
    <<~RUBY
      tiny = ->(name) { File.join(#{TinyModels::ROOT.dump}, name) }
      load = ->(type, name) { Candle.const_get(type).from_pretrained(tiny[name], device: "cpu") }
      photo = #{File.expand_path("../fixtures/images/photo.png", __dir__).dump}
      #{setup}
      move = -> { #{moved} }
      embedder = load[:EmbeddingModel, "bert-sentence"]
      llm, vlm, seq2seq = load[:LLM, "decoders/llama"], load[:VLM, "llava"], load[:Seq2Seq, "seq2seq/t5"]
      clip, ner, late = load[:CLIP, "clip"], load[:NER, "bert-token"], load[:LateInteractionModel, "colbert"]
      image, tensor = Candle::Image.open(photo), Candle::Tensor.new([[1.0, 2.0], [3.0, 4.0]])
      index = Candle::Index.new(dimension: 2).add("a", [1.0, 2.0]).add(7, [2.0, 1.0])
      weights, splitter = Candle::Weights.open(tiny["bert"]), Candle::TextSplitter.new(embedder.tokenizer, size: 8)
      schema = { type: "object", properties: { a: { type: "boolean" } }, required: ["a"] }
      greedy = { temperature: 0, max_length: 6 }
      says = lambda do
        streamed = +""
        llm.generate_stream("the dog", **greedy) { |piece| move.call && streamed << piece }
        [embedder.embed(%w[fox dog]), streamed, llm.generate_structured("a", schema: schema, temperature: 0),
         vlm.describe(image, **greedy), seq2seq.generate(%w[fox dog], max_length: 3), clip.embed_image([image, photo]),
         ner.extract_entities("the fox"), late.score("a", ["the fox"]), tensor.matmul(tensor).to_a,
         index.search([1.0, 1.0]) { |id| move.call && id }, weights.map { |name, *| name },
         splitter.split("the fox is in the house of the dog. " * 4), embedder.tokenizer.encode_with_tokens("the fox")]
      end
      first = says.call
      6.times do |turn|
        move.call
        puts "turn \#{turn} differs" unless says.call == first
      end
      puts "done"
    RUBY
  end

  it "changes no result, whenever it is asked for" do
    output, errors, status = run_ruby(script("", "GC.compact"))
    expect([output, status.success?]).to eq(["done\n", true]), errors
  end

  it "changes no result where it happens by itself", if: RUBY_VERSION >= "3.3" do
    output, errors, status = run_ruby(script("GC.auto_compact = true", "GC.start"))
    expect([output, status.success?]).to eq(["done\n", true]), errors
  end
end
