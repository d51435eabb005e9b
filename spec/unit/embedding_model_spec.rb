# frozen_string_literal: true

require "pathname"
require "set"
require "stringio"

RSpec.describe Candle::EmbeddingModel do
  let(:path) { TinyModels.path("bert-sentence") }
  let(:model) { described_class.from_pretrained(path, device: "cpu") }

  def length(vector)
    Math.sqrt(vector.sum { |value| value * value })
  end

  def cosine(one, other)
    one.zip(other).sum { |a, b| a * b } / (length(one) * length(other))
  end

  describe "loading" do
    it "says what was loaded", :gc_stress do
      expect(model.device).to eq(Candle::Device.cpu)
      expect(model.dtype.to_s).to eq("f32")
      expect(model.model_id).to eq(path)
      expect(model.options).to include(model_id: path, device: "cpu")
      expect(model.options["model_id"]).to eq(path)
      expect(model.options["no such key"]).to be_nil
      expect(model.tokenizer).to be_a(Candle::Tokenizer)
      expect(model.model_info).to include(architecture: "BertModel", family: "bert", dimensions: 32, max_length: 16)
      expect(model.model_info[:parameters]).to be > 10_000
      expect(model.model_info[:files]).to eq([File.join(path, "model.safetensors")])
      expect(model.device_report).to include(requested: "cpu", actual: "cpu", dtype: "f32", fallbacks: [])
      expect(model.inspect).to match(/\A#<Candle::EmbeddingModel .*bert-sentence bert f32 on cpu>\z/)
    end

    it "takes a Pathname, and the device as a second argument" do
      other = described_class.from_pretrained(Pathname.new(path), Candle::Device.cpu)
      expect(other.embed("fox")).to eq(model.embed("fox"))
    end

    it "keeps the form of new, without a warning" do
      built = nil
      expect { built = described_class.new(model_path: path, device: Candle::Device.cpu) }.not_to output.to_stderr
      expect(built.embed("fox")).to eq(model.embed("fox"))
      given = described_class.new(model_path: path, tokenizer_path: path, device: "cpu", model_type: "minilm")
      expect(given.model_type).to eq("minilm")
      expect(given.embed("fox")).to eq(model.embed("fox"))
    end

    it "takes another tokenizer, by object, path or directory" do
      file = File.join(path, "tokenizer.json")
      [Candle::Tokenizer.from_file(file), file, path].each do |tokenizer|
        other = described_class.from_pretrained(path, device: "cpu", tokenizer: tokenizer)
        expect(other.embed("quick fox")).to eq(model.embed("quick fox"))
      end
    end

    it "lets pooling, normalization and length be replaced for good" do
      other = described_class.from_pretrained(path, device: "cpu", pooling: :cls, normalize: false, max_length: 5)
      expect(other.embed("the quick fox")).to eq(model.embed("the quick fox", pooling: :cls, normalize: false))
      expect(other.max_length).to eq(5)
      expect(other.model_info).to include(pooling: ["cls"], normalize: false)
      expect(other.embed("the dog and the fox live in paris")).to eq(other.embed("the dog and"))
    end

    it "can halve its precision" do
      %i[f16 bf16].each do |dtype|
        half = described_class.from_pretrained(path, device: "cpu", dtype: dtype)
        expect(half.dtype.to_s).to eq(dtype.to_s)
        expect(cosine(half.embed("the quick fox"), model.embed("the quick fox"))).to be > 0.999
      end
    end

    it "refuses what it does not know" do
      expect { described_class.from_pretrained(path, colour: 1) }.to raise_error(ArgumentError, /colour/)
      expect { described_class.from_pretrained(path, pooling: :median) }
        .to raise_error(Candle::InvalidInputError, /median.*mean, cls/)
      expect { described_class.from_pretrained(path, max_length: 0) }
        .to raise_error(ArgumentError, /max_length must be a positive Integer/)
      expect { described_class.from_pretrained(path, model_type: "gpt") }.to raise_error(ArgumentError, /model_type/)
      expect { described_class.from_pretrained(path, embedding_size: 33) }
        .to raise_error(Candle::InvalidInputError, /at most the model's 32, not 33/)
      expect { described_class.from_pretrained(nil) }.to raise_error(Candle::InvalidInputError, /source .*nil/)
    end

    it "takes a smaller size for good" do
      small = described_class.from_pretrained(path, device: "cpu", embedding_size: 8)
      expect(small.dimension).to eq(8)
      expect(small.embed("fox")).to eq(model.embed("fox", dimensions: 8))
    end
  end

  describe "#embed" do
    let(:texts) { ["hello world", "", "the quick brown fox jumps over the lazy dog", "a", "Paris, is it?"] }

    it "gives one vector for a String and one per text for an Array, in order", :gc_stress do
      expect(model.embed("fox")).to all(be_a(Float)).and have_attributes(size: 32)
      vectors = model.embed(texts)
      expect(vectors.size).to eq(5)
      texts.zip(vectors) { |text, vector| expect(model.embed(text)).to be_near(vector, 1e-5) }
    end

    it "gives nothing for nothing" do
      expect(model.embed([])).to eq([])
      expect(model.embed([], as: :packed)).to eq([])
      expect(model.embed([], as: :tensor).shape).to eq([0, 32])
    end

    it "takes any Enumerable" do
      expect(model.embed(texts.each)).to eq(model.embed(texts))
      expect(model.embed(Set.new(texts))).to eq(model.embed(texts))
    end

    it "keeps the order over many slices and batches" do
      many = Array.new(2500) { |index| %w[the quick brown fox].take((index % 4) + 1).join(" ") }
      single = many.first(4).map { |text| model.embed(text) }
      model.embed(many, batch_tokens: 64).each_with_index do |vector, at|
        expect(vector).to be_near(single[at % 4], 1e-5)
      end
    end

    it "normalizes only when asked" do
      expect(length(model.embed("quick fox"))).to be_within(1e-5).of(1)
      raw = model.embed("quick fox", normalize: false)
      expect(length(raw)).not_to be_within(1e-2).of(1)
      expect(raw.map { |value| value / length(raw) }).to be_near(model.embed("quick fox"), 1e-5)
    end

    it "keeps the leading dimensions and normalizes again" do
      full = model.embed("quick fox")
      short = model.embed("quick fox", dimensions: 8)
      leading = full.first(8)
      expect(short).to be_near(leading.map { |value| value / length(leading) }, 1e-5)
      expect(model.embed("quick fox", dimensions: 8, normalize: false).size).to eq(8)
    end

    it "gives tensors", :gc_stress do
      expect(model.embed(texts, as: :tensor).to_a).to eq(model.embed(texts))
      expect(model.embed("fox", as: :tensor).shape).to eq([1, 32])
    end

    it "gives packed floats", :gc_stress do
      expect(model.embed(texts, as: :packed).map { |row| row.unpack("e*") }).to eq(model.embed(texts))
      expect(model.embed("fox", as: :packed).encoding).to eq(Encoding::BINARY)
    end

    it "gives bytes that keep the direction" do
      bytes = model.embed("fox", as: :int8)
      expect(bytes.bytesize).to eq(32)
      expect(bytes.unpack("c*").map(&:abs).max).to eq(127)
      expect(cosine(bytes.unpack("c*"), model.embed("fox"))).to be > 0.999
    end

    it "gives bits that are the signs" do
      bits = model.embed(texts, as: :binary)
      signs = model.embed(texts).map { |row| row.map { |value| value.positive? ? "1" : "0" }.join }
      expect(bits.map { |row| row.unpack1("B*") }).to eq(signs)
    end

    it "tells its progress" do
      calls = []
      model.embed(["fox"] * 150, progress: ->(done, total) { calls << [done, total] })
      expect(calls).to eq([[64, 150], [128, 150], [150, 150]])
    end

    it "says what can't be told its progress" do
      [{}, :bar, 1, "yes", BasicObject.new].each do |odd|
        expect { model.embed("fox", progress: odd) }.to raise_error(ArgumentError, /progress must be true, false or/)
      end
      expect(model.embed("fox", progress: nil)).to eq(model.embed("fox", progress: [].method(:push)))
    end

    it "shows a bar on a terminal only" do
      expect { model.embed(%w[fox dog], progress: true) }.not_to output.to_stderr
      terminal = StringIO.new.tap { |io| io.define_singleton_method(:tty?) { true } }
      bar = Candle::Progress.for(true, output: terminal)
      bar.call(1, 2)
      bar.call(2, 2)
      expect(terminal.string).to match(%r{\[#+\.+\] 1/2 .*\[#+\] 2/2 .*\n}m)
    end

    it "cuts long texts, or names them when told not to" do
      long = "the dog and the fox live in paris and " * 8
      expect(model.embed(long)).to be_near(TinyModels.rows("bert-sentence", "default")[8])
      count = model.count_tokens(long)
      expect(count).to be > 60
      expect { model.embed(["fox", long], truncate: false) }
        .to raise_error(Candle::InvalidInputError, /index 1 has #{count} tokens, more than the 16/)
      expect { model.embed((["fox"] * 1500) + [long], truncate: false) }
        .to raise_error(Candle::InvalidInputError, /index 1500 /)
    end

    it "takes ten megabytes" do
      huge = "the quick brown fox " * 500_000
      expect(huge.bytesize).to eq(10_000_000)
      expect(model.embed(huge)).to be_near(model.embed("the quick brown fox " * 10), 1e-5)
    end

    it "takes other encodings and binary strings that are UTF-8" do
      expect(model.embed("café".encode("ISO-8859-1"))).to eq(model.embed("café"))
      expect(model.embed("café".b)).to eq(model.embed("café"))
    end

    it "refuses what isn't a text, naming its place and the fix" do
      { nil => /text.* must be .*not nil/, 5 => /not an Integer/, { a: 1 } => /not a Hash/,
        "\xff" => /not valid UTF-8.*scrub/, ["fox", nil] => /texts\[1\] must be a String, not nil/,
        ["fox", "\xff\xfe".b] => /texts\[1\] is not valid UTF-8/, [["fox"]] => /texts\[0\]/ }.each do |input, message|
        expect { model.embed(input) }.to raise_error(Candle::InvalidInputError, message)
      end
    end

    it "refuses options that no call can take" do
      { pooling: :median, dimensions: 33, prompt_name: "unknown", prompt: 5 }.each do |name, value|
        expect { model.embed("fox", name => value) }.to raise_error(Candle::InvalidInputError)
      end
      expect { model.embed("fox", batch_tokens: 0) }.to raise_error(ArgumentError, /batch_tokens/)
      expect { model.embed("fox", dimensions: 33) }.to raise_error(/between 1 and the model's 32, not 33/)
      expect { model.embed("fox", dimensions: -1) }.to raise_error(ArgumentError, /positive/)
      expect { model.embed("fox", prompt_name: "unknown") }.to raise_error(/query/)
      expect { model.embed("fox", as: :json) }.to raise_error(ArgumentError, /:array, :tensor/)
      expect { model.embed("fox", colour: 1) }.to raise_error(ArgumentError, /colour/)
    end
  end

  describe "#embed_each" do
    it "yields every text with its vector" do
      texts = %w[fox dog paris hello world]
      found = []
      expect(model.embed_each(texts, batch: 2) { |text, vector| found << [text, vector] }).to equal(texts)
      expect(found.map(&:first)).to eq(texts)
      expect(found.map(&:last)).to be_near(model.embed(texts), 1e-5)
    end

    it "gives an Enumerator without a block, with a size where there is one" do
      each = model.embed_each(%w[fox dog])
      expect(each.size).to eq(2)
      expect(each.next.first).to eq("fox")
      expect(each.map { |text, _| text }).to eq(%w[fox dog])
    end

    it "reads no further than it must" do
      read = 0
      endless = Enumerator.new { |yielder| loop { yielder << "fox #{read += 1}" } }
      expect(model.embed_each(endless, batch: 4).first(3).map(&:first)).to eq(["fox 1", "fox 2", "fox 3"])
      expect(read).to eq(4)
    end

    it "yields what comes before a bad text, and names its place" do
      texts = ["fox", "dog", "paris", nil, "world"]
      yielded = []
      expect { model.embed_each(texts, batch: 2) { |text, _| yielded << text } }
        .to raise_error(Candle::InvalidInputError, /texts\[3\] must be a String, not nil/)
      expect(yielded).to eq(%w[fox dog paris])
      model.embed_each(texts.drop(4)) { |text, _| yielded << text }
      expect(yielded).to eq(%w[fox dog paris world])
    end

    it "yields what comes before a text that is too long" do
      texts = ["fox", "dog", "the quick fox " * 20, "world"]
      yielded = []
      expect { model.embed_each(texts, truncate: false) { |text, _| yielded << text } }
        .to raise_error(Candle::InvalidInputError, /index 2 has 62 tokens/)
      expect(yielded).to eq(%w[fox dog])
    end

    it "hands on what the block raises, once" do
      yielded = []
      expect { model.embed_each(%w[fox dog]) { |text, _| yielded << text && raise(Candle::InvalidInputError, "mine") } }
        .to raise_error(Candle::InvalidInputError, "mine")
      expect(yielded).to eq(%w[fox])
    end

    it "takes the options of embed" do
      pairs = model.embed_each(%w[fox dog], as: :packed, dimensions: 4, prompt_name: "query").to_a
      expect(pairs.map { |_, bytes| bytes.unpack("e*").size }).to eq([4, 4])
      expect(model.embed_each(%w[fox], as: :tensor).first.last.shape).to eq([32])
    end

    it "refuses what can't be gone through" do
      expect { model.embed_each("fox") { nil } }.to raise_error(Candle::InvalidInputError, /Enumerable.*String/)
      expect { model.embed_each(%w[fox], batch: 0) { nil } }.to raise_error(ArgumentError, /batch/)
      expect { model.embed_each(%w[fox], colour: 1) { nil } }.to raise_error(ArgumentError, /colour/)
    end
  end

  describe "the kept methods" do
    it "gives tensors by the name of a pooling" do
      text = "the quick fox"
      expect(model.embedding(text).shape).to eq([1, 32])
      methods = { "pooled" => [:mean, false], "pooled_normalized" => [:mean, true], "cls" => [:cls, false],
                  "cls_normalized" => [:cls, true], "max" => [:max, false], "last" => [:last, false] }
      methods.each do |name, (pooling, normalize)|
        expected = model.embed(text, pooling: pooling, normalize: normalize)
        expect(model.embedding(text, pooling_method: name).to_a.first).to eq(expected)
      end
      expect { model.embedding(text, pooling_method: "median") }
        .to raise_error(ArgumentError, /median.*pooled_normalized/)
    end

    it "pools hidden states" do
      text = "the quick fox"
      states = model.embeddings(text)
      expect(states.shape).to eq([1, model.count_tokens(text), 32])
      expect(model.pool_embedding(states).to_a.first).to be_near(model.embed(text, normalize: false), 1e-5)
      expect(model.pool_and_normalize_embedding(states).to_a.first).to be_near(model.embed(text), 1e-5)
      expect(model.pool_cls_embedding(states).to_a.first).to be_near(
        model.embed(text, pooling: :cls, normalize: false), 1e-5
      )
      expect { model.pool_embedding([1.0]) }.to raise_error(Candle::InvalidInputError, /Tensor of shape/)
    end

    it "names the kind of the model" do
      expect(model.model_type).to eq(Candle::EmbeddingModelType::STANDARD_BERT)
      jina = described_class.from_pretrained(TinyModels.path("jina-bert"), device: "cpu")
      expect(jina.model_type).to eq(Candle::EmbeddingModelType::JINA_BERT)
      modern = described_class.from_pretrained(TinyModels.path("modernbert"), device: "cpu")
      expect(modern.model_type).to eq(Candle::EmbeddingModelType::MODERNBERT)
      expect(Candle::EmbeddingModelType.all).to include("jina_bert", "standard_bert", "minilm", "distilbert",
                                                        "modernbert")
      expect(Candle::EmbeddingModelType.suggested_model_paths.keys).to match_array(Candle::EmbeddingModelType.all)
    end
  end

  describe "#similarity" do
    it "compares texts, vectors and tensors" do
      expected = cosine(model.embed("quick fox"), model.embed("lazy dog"))
      expect(model.similarity("quick fox", "lazy dog")).to be_within(1e-5).of(expected)
      expect(model.similarity("quick fox", model.embed("lazy dog"))).to be_within(1e-5).of(expected)
      expect(model.similarity(model.embedding("quick fox"), "lazy dog")).to be_within(1e-5).of(expected)
      expect(model.similarity([3.0, 0.0], [1.0, 1.0])).to be_within(1e-6).of(Math.sqrt(0.5))
      expect(model.similarity([0.0, 0.0], [1.0, 1.0])).to eq(0.0)
    end

    it "names both lengths when they differ" do
      expect { model.similarity([1.0], [1.0, 2.0]) }.to raise_error(Candle::InvalidInputError, /of 1 and of 2/)
      expect { model.similarity(nil, "fox") }.to raise_error(Candle::InvalidInputError, /first vector/)
    end
  end

  describe "#search" do
    let(:texts) { ["hello world", "the lazy dog", "paris is the capital", "a lazy fox"] }
    let(:expected) do
      query = model.embed("lazy dog")
      scores = texts.map { |text| cosine(query, model.embed(text)) }
      scores.each_with_index.sort_by { |score, _| -score }
    end

    it "finds the nearest texts" do
      found = model.search("lazy dog", texts)
      expect(found.map { |hit| hit[:index] }).to eq(expected.map(&:last))
      expect(found.map { |hit| hit[:score] }).to be_near(expected.map(&:first), 1e-5)
      expect(found.first).to eq(index: expected[0][1], score: found[0][:score], text: texts[expected[0][1]])
      expect(model.search("lazy dog", texts, top_k: 2)).to eq(found.first(2))
    end

    it "takes one text" do
      found = model.search("lazy dog", "the lazy dog")
      expect(found).to eq(model.search("lazy dog", ["the lazy dog"]))
      expect(found.first).to include(index: 0, text: "the lazy dog")
    end

    it "names what is neither a text nor a vector" do
      expect { model.search("fox", nil) }
        .to raise_error(Candle::InvalidInputError, "candidates must be texts, vectors or an index, not nil")
      expect { model.search("fox", [nil]) }
        .to raise_error(Candle::InvalidInputError, "candidates[0] must be a text or a vector like the others, not nil")
      expect { model.search("fox", [[0.0] * 32, nil]) }.to raise_error(Candle::InvalidInputError, /candidates\[1\]/)
      expect { model.search("fox", ["dog", nil]) }
        .to raise_error(Candle::InvalidInputError, "candidates[1] must be a String, not nil")
      expect { model.search("fox", [:dog]) }.to raise_error(Candle::InvalidInputError, /candidates\[0\].*:dog/)
    end

    it "finds among vectors that were made earlier" do
      [model.embed(texts), model.embed(texts, as: :tensor)].each do |vectors|
        found = model.search("lazy dog", vectors, top_k: 1).first
        expect(found).to include(index: expected[0][1], text: nil)
        expect(found[:score]).to be_within(1e-5).of(expected[0][0])
      end
      expect(model.search(model.embed("lazy dog"), texts).first[:index]).to eq(expected[0][1])
    end

    it "takes packed vectors wherever it takes vectors" do
      packed = model.embed(texts, as: :packed)
      query = model.embed("lazy dog", as: :packed)
      wanted = model.search("lazy dog", model.embed(texts))
      [packed, packed.join].each do |vectors|
        [query, "lazy dog"].each { |asked| expect(model.search(asked, vectors)).to eq(wanted) }
      end
      expect(model.similarity(query, packed[1])).to be_within(1e-6).of(model.similarity("lazy dog", texts[1]))
      expect(model.search(query, texts).first[:text]).to eq(texts[expected[0][1]])
    end

    it "asks an index" do
      index = Object.new
      def index.search(vector, top_k:)
        [{ id: vector.shape, score: top_k }]
      end
      expect(model.search("lazy dog", index, top_k: 3)).to eq([{ id: [32], score: 3 }])
    end

    it "puts a prompt before the texts too" do
      wanted = model.search("lazy dog", model.embed(texts, prompt: "query: "))
      found = model.search("lazy dog", texts, document_prompt: "query: ")
      expect(found.map { |hit| hit[:score] }).to be_near(wanted.map { |hit| hit[:score] }, 1e-6)
    end

    it "keeps the lengths of a tensor's vectors, and finds the same again" do
      rows = Candle::Tensor.rand([5000, 32])
      first = model.search("lazy dog", rows, top_k: 7)
      expect(model.search("lazy dog", rows, top_k: 7)).to eq(first)
      vector = model.embed("lazy dog")
      scores = rows.to_a.map { |row| cosine(vector, row) }
      order = scores.each_index.sort_by { |index| -scores[index] }.first(7)
      expect(first.map { |hit| hit[:score] }).to be_near(scores.values_at(*order), 1e-5)
    end

    it "finds nothing among nothing" do
      expect(model.search("lazy dog", [])).to eq([])
    end

    it "can put a prompt before the query" do
      query = model.embed("lazy dog", prompt_name: "query")
      found = model.search("lazy dog", texts, prompt_name: "query")
      found.each { |hit| expect(hit[:score]).to be_within(1e-5).of(cosine(query, model.embed(hit[:text]))) }
    end

    it "refuses vectors of another length and a bad count" do
      expect { model.search("fox", [[1.0, 2.0]]) }.to raise_error(Candle::InvalidInputError, /of 32 and of 2/)
      expect { model.search("fox", texts, top_k: 0) }.to raise_error(ArgumentError, /top_k/)
    end
  end

  describe "#embed_ids" do
    let(:model) { described_class.from_pretrained(TinyModels.path("bert-sentence")) }
    let(:texts) { ["the quick fox", "hello world, the lazy dog"] }
    let(:ids) { texts.map { |text| model.tokenizer.encode(text) } }

    it "gives what the texts give" do
      expect(model.embed_ids(ids)).to eq(model.embed(texts))
      expect(model.embed_ids(ids, as: :tensor, pooling: :cls, dimensions: 8).shape).to eq([2, 8])
      expect(model.embed_ids([])).to eq([])
    end

    it "refuses what the model has no rows for" do
      expect { model.embed_ids([[1], [999_999]]) }.to raise_error(Candle::InvalidInputError, /999999.*index 1/)
      expect { model.embed_ids([[]]) }.to raise_error(Candle::InvalidInputError, /index 0 has 0 tokens/)
      expect { model.embed_ids([[1] * 10_000]) }.to raise_error(Candle::InvalidInputError, /10000 tokens/)
    end
  end
end
