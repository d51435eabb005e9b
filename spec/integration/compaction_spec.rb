# frozen_string_literal: true

# Objects move in memory when Ruby compacts its heap: between calls, in the middle of a stream, and at any moment that
# Ruby chooses.
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

  it "changes no result where it happens by itself" do
    output, errors, status = run_ruby(script("GC.start\nGC.auto_compact = true", "GC.start"))
    expect([output, status.success?]).to eq(["done\n", true]), errors
  end

  # Ruby 3.1 compacts during the sweep of any major collection once `GC.auto_compact` is on, also of one whose marking
  # began before, and then no object on a stack was pinned. Native memory, which the gem reports, makes a collection
  # that is still marking likely, but nothing of the gem is needed.
  describe "GC.auto_compact = true" do
    # Allocates enough to end a collection that was begun, and to run several more.
    let(:work) do
      <<~RUBY
        20.times do
          items = Array.new(1000) { |number| "item \#{number}" * 3 }
          pairs = items.each_with_index.to_h.map { |item, index| [item, index.to_s, { index => item }] }
          pairs.flatten.map(&:to_s).sort.join(" ").split.uniq.size
        end
        puts "done"
      RUBY
    end
    let(:marking) { "GC.start(full_mark: true, immediate_mark: false, immediate_sweep: false)" }
    let(:reports) { "held = Array.new(4) { Candle::Tensor.zeros([24, 1 << 20], device: \"cpu\") }" }

    def plain_ruby(script)
      output, status = Open3.capture2e(RbConfig.ruby, "--disable-gems", "-e", script)
      [output, status.success? || false]
    end

    def done(*lines)
      output, errors, status = run_ruby([*lines, work].join("\n"))
      expect([output, status.success?]).to eq(["done\n", true]), errors
    end

    it "crashes Ruby 3.1 without the gem while a collection marks", if: RUBY_VERSION < "3.2" do
      expect(plain_ruby("#{marking}\nGC.auto_compact = true\n#{work}")).to match([/\[BUG\]/, false])
      expect(plain_ruby("#{marking}\nGC.start\nGC.auto_compact = true\n#{work}")).to eq(["done\n", true])
    end

    it "is safe after a full collection, with native memory reported and a thread that compacts" do
      done(reports, marking, "GC.start", "GC.auto_compact = true", "Thread.new { loop { GC.compact && sleep(0.002) } }")
    end

    it "is safe while a collection marks", unless: RUBY_VERSION < "3.2" do
      done(reports, marking, "GC.auto_compact = true")
    end

    it "is safe before native memory is reported" do
      done("GC.start", "GC.auto_compact = true", reports, marking)
    end
  end
end
