# frozen_string_literal: true

require "spec_helper"
require "English"
require "json"
require "pathname"
require "timeout"
require "tmpdir"

RSpec.describe Candle::Tokenizer do
  fixtures = File.expand_path("../fixtures/tokenizers", __dir__)

  let(:word_piece) { described_class.from_pretrained(File.join(fixtures, "wordpiece")) }
  let(:byte_level) { described_class.from_pretrained(File.join(fixtures, "byte_level_bpe")) }

  def with_environment(values)
    before = values.to_h { |name, _| [name, ENV.fetch(name, nil)] }
    ENV.update(values)
    yield
  ensure
    ENV.update(before)
  end

  describe ".from_file" do
    it "takes a String or a Pathname" do
      path = File.join(fixtures, "wordpiece", "tokenizer.json")
      expect(described_class.from_file(path).encode("the cat")).to eq(word_piece.encode("the cat"))
      expect(described_class.from_file(Pathname(path)).encode("the cat")).to eq(word_piece.encode("the cat"))
    end

    it "names a file that does not exist" do
      expect { described_class.from_file("no/such/tokenizer.json") }
        .to raise_error(Candle::ModelNotFoundError, %r{no/such/tokenizer\.json})
    end

    it "sends a directory to from_pretrained" do
      expect { described_class.from_file(fixtures) }.to raise_error(Candle::InvalidInputError, /from_pretrained/)
    end

    it "names a damaged file" do
      Dir.mktmpdir do |directory|
        path = File.join(directory, "tokenizer.json")
        ["", "{", "[1, 2]", "\xFF\xFE", "{\"version\": \"1.0\"}"].each do |content|
          File.binwrite(path, content)
          expect { described_class.from_file(path) }.to raise_error(Candle::Error, /tokenizer\.json/)
        end
      end
    end

    it "refuses nil" do
      expect { described_class.from_file(nil) }.to raise_error(Candle::InvalidInputError, /path must be a String/)
    end

    it "leaves out truncation and padding that the file asks for" do
      json = JSON.parse(File.read(File.join(fixtures, "wordpiece", "tokenizer.json")))
      expect([json["truncation"], json["padding"]]).to all(be_a(Hash))
      ids = word_piece.encode("the cat sat on the mat")
      expect(ids.length).to be > 5
      expect(ids).not_to include(0)
    end
  end

  describe ".from_pretrained" do
    it "says what a directory without a tokenizer lacks" do
      Dir.mktmpdir do |directory|
        expect { described_class.from_pretrained(directory) }
          .to raise_error(Candle::TokenizerError, /no tokenizer.*tokenizer\.json.*vocab\.txt/m)
      end
    end

    it "names a damaged configuration" do
      Dir.mktmpdir do |directory|
        FileUtils.cp(File.join(fixtures, "wordpiece", "tokenizer.json"), directory)
        File.write(File.join(directory, "tokenizer_config.json"), "{\"model_max_length\": ")
        expect { described_class.from_pretrained(directory) }
          .to raise_error(Candle::CorruptModelError, /tokenizer_config\.json/)
      end
    end

    it "finds an id in the hub's cache, with the files that are there" do
      Dir.mktmpdir do |cache|
        repository = File.join(cache, "models--owner--name")
        snapshot = File.join(repository, "snapshots", "a" * 40)
        FileUtils.mkdir_p([snapshot, File.join(repository, "refs")])
        FileUtils.cp_r(File.join(fixtures, "byte_level_bpe", "."), snapshot)
        File.write(File.join(repository, "refs", "main"), "a" * 40)
        with_environment("HF_HUB_CACHE" => cache, "HF_HUB_OFFLINE" => "1") do
          tokenizer = described_class.from_pretrained("owner/name")
          expect(tokenizer.encode("the cat")).to eq(byte_level.encode("the cat"))
          expect(tokenizer.chat_templates).to eq(byte_level.chat_templates)
          expect { described_class.from_pretrained("owner/other") }.to raise_error(Candle::Error, %r{owner/other})
        end
      end
    end

    it "refuses unknown keywords" do
      expect { described_class.from_pretrained(fixtures, revison: "main") }.to raise_error(ArgumentError)
    end
  end

  describe "encoding" do
    it "gives ids, tokens, and both", :gc_stress do
      ids = word_piece.encode("The cat")
      tokens = word_piece.encode_to_tokens("The cat")
      expect(tokens.first).to eq("[CLS]")
      expect(tokens.last).to eq("[SEP]")
      expect(word_piece.encode_with_tokens("The cat")).to eq({ ids: ids, tokens: tokens })
      expect(ids.map { |id| word_piece.id_to_token(id) }).to eq(tokens)
    end

    it "gives character offsets into the text" do
      text = "日本語 Größe 🙂 cats"
      result = byte_level.encode_with_offsets(text)
      covered = result[:offsets].flat_map { |first, last| [*first...last] }.uniq
      # A character may take several tokens; spaces are trimmed.
      expect(covered.sort).to eq((0...text.length).reject { |index| text[index] == " " })
      first, last = result[:offsets].last
      expect("cats").to end_with(text[first...last])
    end

    it "takes empty texts and batches", :gc_stress do
      expect(byte_level.encode("")).to eq([])
      expect(byte_level.encode_batch([])).to eq([])
      expect(byte_level.encode_batch([""])).to eq([[]])
      expect(byte_level.decode([])).to eq("")
    end

    it "keeps NUL bytes" do
      expect(byte_level.decode(byte_level.encode("a\0b"))).to eq("a\0b")
    end

    it "transcodes texts in other encodings" do
      expected = byte_level.encode("Größe")
      expect(byte_level.encode("Größe".encode("UTF-16LE"))).to eq(expected)
      expect(byte_level.encode("Größe".encode("ISO-8859-1"))).to eq(expected)
      expect(byte_level.encode("Größe".b)).to eq(expected)
    end

    it "says how to repair invalid text" do
      expect { byte_level.encode("a\xFF") }.to raise_error(Candle::InvalidInputError, /scrub/)
      expect { byte_level.encode("a\xFF".b) }.to raise_error(Candle::InvalidInputError, /scrub/)
      expect { byte_level.encode_batch(["a", "\xFF"]) }.to raise_error(Candle::InvalidInputError, /texts\[1\]/)
    end

    it "refuses what isn't a text" do
      [nil, 1, :symbol, ["a"], {}].each do |value|
        expect { byte_level.encode(value) }.to raise_error(Candle::InvalidInputError, /text must be a String/)
      end
      expect { byte_level.encode_batch("a") }.to raise_error(Candle::InvalidInputError, /Array of Strings/)
      expect { byte_level.encode_batch(["a", nil]) }.to raise_error(Candle::InvalidInputError, /texts\[1\].*nil/)
    end

    it "leaves the given text as it was" do
      text = "Größe".b.freeze
      byte_level.encode(text)
      expect(text.encoding).to eq(Encoding::BINARY)
    end
  end

  describe "#decode" do
    it "leaves out special tokens when asked", :gc_stress do
      ids = word_piece.encode("the cat")
      expect(word_piece.decode(ids)).to eq("the cat")
      expect(word_piece.decode(ids, skip_special_tokens: false)).to eq("[CLS] the cat [SEP]")
    end

    it "refuses ids that no token has" do
      size = word_piece.vocab_size
      [[size], [-1], [2**32], [1.5], ["1"], [nil], [false], nil, 3].each do |ids|
        expect { word_piece.decode(ids) }.to raise_error(Candle::InvalidInputError)
      end
      expect { word_piece.decode([1, size]) }.to raise_error(Candle::InvalidInputError, /id #{size}.*#{size} tokens/)
    end
  end

  describe "the vocabulary" do
    it "maps tokens and ids both ways" do
      word_piece.get_vocab.each do |token, id|
        expect([word_piece.token_to_id(token), word_piece.id_to_token(id)]).to eq([id, token])
      end
      expect(word_piece.token_to_id("no such token")).to be_nil
      expect(word_piece.id_to_token(10_000)).to be_nil
      expect(word_piece.id_to_token(-1)).to be_nil
    end

    it "counts with and without added tokens" do
      path = File.join(fixtures, "byte_level_bpe", "tokenizer.json")
      json = JSON.parse(File.read(path))
      size = json["model"]["vocab"].size
      json["added_tokens"] << json["added_tokens"].first.merge("id" => size, "content" => "<extra>")
      Dir.mktmpdir do |directory|
        File.write(File.join(directory, "tokenizer.json"), JSON.generate(json))
        tokenizer = described_class.from_file(File.join(directory, "tokenizer.json"))
        expect(tokenizer.vocab_size).to eq(size + 1)
        expect(tokenizer.vocab_size(with_added_tokens: false)).to eq(size)
        expect(tokenizer.get_vocab["<extra>"]).to eq(size)
        expect(tokenizer.get_vocab(with_added_tokens: false)).not_to include("<extra>")
      end
    end

    it "tells special tokens by role" do
      expect(word_piece.get_special_tokens).to eq(
        "unk_token" => 1, "sep_token" => 3, "pad_token" => 0, "cls_token" => 2, "mask_token" => 4
      )
      alone = described_class.from_file(File.join(fixtures, "wordpiece", "tokenizer.json"))
      expect(alone.get_special_tokens).to eq(word_piece.get_special_tokens)
      expect(byte_level.eos_token_ids).to include(byte_level.token_to_id("<|im_end|>"))
    end
  end

  describe "#with_padding" do
    it "returns a new tokenizer that pads a batch to its longest" do
      padded = word_piece.with_padding
      lengths = padded.encode_batch(["cat", "the cat sat on the mat"]).map(&:length)
      expect(lengths.uniq.size).to eq(1)
      expect(padded.encode_batch(["cat", "the cat sat on the mat"]).first.last).to eq(0)
      expect(word_piece.encode("cat").length).to be < lengths.first
    end

    it "pads to a length, on either side, and to multiples" do
      expect(word_piece.with_padding(length: 12).encode("cat").length).to eq(12)
      expect(word_piece.with_padding(max_length: 12).encode("cat").length).to eq(12)
      left = word_piece.with_padding(length: 12, direction: :left, pad_id: 4)
      expect(left.encode("cat").first).to eq(4)
      expect(left.encode_to_tokens("cat").first).to eq("[MASK]")
      expect(word_piece.with_padding(pad_to_multiple_of: 8).encode("cat").length).to eq(8)
      mask = word_piece.with_padding(length: 12).encode_with_offsets("cat")[:attention_mask]
      expect(mask.sum).to eq(word_piece.encode("cat").length)
    end

    it "can be switched off again" do
      expect(word_piece.with_padding(length: 12).with_padding(enabled: false).encode("cat"))
        .to eq(word_piece.encode("cat"))
    end

    it "refuses what makes no sense" do
      expect { word_piece.with_padding(direction: "up") }.to raise_error(ArgumentError, /left or right/)
      expect { word_piece.with_padding(length: 0) }.to raise_error(ArgumentError, /length/)
      expect { word_piece.with_padding(length: 2**40).encode("a") }.to raise_error(Candle::OutOfMemoryError)
    end
  end

  describe "#with_truncation" do
    it "returns a new tokenizer that counts special tokens in" do
      limited = word_piece.with_truncation(4)
      ids = limited.encode("the cat sat on the mat")
      expect(ids.length).to eq(4)
      expect([ids.first, ids.last]).to eq([2, 3])
      expect(word_piece.encode("the cat sat on the mat").length).to be > 4
      expect(limited.with_truncation(nil).encode("the cat sat on the mat").length).to be > 4
    end

    it "says when special tokens do not fit" do
      expect { word_piece.with_truncation(1).encode("cat") }
        .to raise_error(Candle::InvalidInputError, /2 special tokens/)
      [0, -1, 1.5, "4"].each do |length|
        expect { word_piece.with_truncation(length) }.to raise_error(ArgumentError, /positive Integer/)
      end
      expect { word_piece.with_truncation(4, strategy: "none") }
        .to raise_error(Candle::InvalidInputError, /longest_first/)
    end
  end

  describe "#apply_chat_template" do
    let(:messages) { [{ role: "user", content: "Hi" }] }
    let(:expected) { "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n" }

    it "takes string and symbol keys" do
      expect(byte_level.apply_chat_template(messages)).to eq(expected)
      expect(byte_level.apply_chat_template([{ "role" => :user, "content" => "Hi" }])).to eq(expected)
      expect(byte_level.apply_chat_template(messages, add_generation_prompt: false))
        .to eq("<|im_start|>user\nHi<|im_end|>\n")
    end

    it "uses the template of a GGUF file" do
      gguf = described_class.from_pretrained(File.join(fixtures, "gguf", "byte_level_bpe.gguf"))
      expect(gguf.apply_chat_template(messages)).to eq(expected)
      expect(gguf.chat_templates.keys).to eq(["default"])
    end

    it "reads the template files beside the configuration" do
      Dir.mktmpdir do |directory|
        FileUtils.cp_r(File.join(fixtures, "byte_level_bpe", "."), directory)
        File.write(File.join(directory, "chat_template.jinja"), "own {{ messages[0].content }}")
        FileUtils.mkdir(File.join(directory, "additional_chat_templates"))
        File.write(File.join(directory, "additional_chat_templates", "rag.jinja"), "rag {{ documents | length }}")
        tokenizer = described_class.from_pretrained(directory)
        expect(tokenizer.apply_chat_template(messages)).to eq("own Hi")
        expect(tokenizer.apply_chat_template(messages, chat_template: "rag", documents: [{}, {}])).to eq("rag 2")
        expect { tokenizer.apply_chat_template(messages, chat_template: "nope") }
          .to raise_error(Candle::InvalidInputError, /nope.*default, rag/)
      end
    end

    it "does not guess when there is no template" do
      expect { word_piece.apply_chat_template(messages) }
        .to raise_error(Candle::InvalidInputError, /no chat template.*chat_template:/)
      expect(word_piece.apply_chat_template(messages, chat_template: "{{ messages[0].role }}")).to eq("user")
    end

    it "passes tools and variables on" do
      template = "{{ tools[0].function.name }} {{ flag }}"
      text = byte_level.apply_chat_template(messages, tools: [{ function: { name: "f" } }], chat_template: template,
                                                      variables: { flag: true })
      expect(text).to eq("f True")
    end

    it "refuses what isn't a list of messages" do
      [nil, "Hi", {}, ["Hi"], [{ content: "Hi" }]].each do |value|
        expect { byte_level.apply_chat_template(value) }.to raise_error(Candle::InvalidInputError, /messages/)
      end
      expect { byte_level.apply_chat_template([{ role: "user", content: "\xFF" }]) }
        .to raise_error(Candle::InvalidInputError)
    end
  end

  describe "manners" do
    it "shows itself in one line" do
      expect(word_piece.inspect).to match(/\A#<Candle::Tokenizer WordPiece, \d+ tokens, .*wordpiece>\z/)
      expect(word_piece.with_truncation(7).with_padding.to_s).to include("truncates at 7", "pads")
    end

    it "tells its options" do
      options = word_piece.with_truncation(7).with_padding(length: 9).options
      expect(options).to include(model: "WordPiece", model_max_length: 512)
      expect(options[:truncation]).to eq(max_length: 7, strategy: "longest_first", direction: "right")
      expect(options[:padding]).to include(pad_id: 0, pad_token: "[PAD]", length: 9, direction: "right")
      expect(word_piece.options).to include(truncation: nil, padding: nil)
    end

    it "can't be allocated empty" do
      expect { described_class.allocate }.to raise_error(TypeError)
      expect { described_class.new }.to raise_error(ArgumentError)
    end

    it "keeps what it returns from the collector", :gc_stress do
      result = byte_level.with_padding(length: 8).encode_with_offsets("the cat")
      text = byte_level.decode(result[:ids])
      prompt = byte_level.apply_chat_template([{ role: "user", content: text }], add_generation_prompt: false)
      expect([result[:tokens].length, prompt]).to eq([8, "<|im_start|>user\nthe cat<|im_end|>\n"])
    end

    it "serves threads" do
      texts = Array.new(50) { |index| "the cat sat #{index} times" }
      expected = texts.map { |text| byte_level.encode(text) }
      tokenizer = byte_level
      results = Array.new(4) { Thread.new { texts.map { |text| tokenizer.encode(text) } } }.map(&:value)
      expect(results).to all(eq(expected))
    end

    it "works in a forked child" do
      texts = ["the cat", "sat on the mat"] * 50
      expected = byte_level.encode_batch(texts)
      child = fork do
        Timeout.timeout(20) { exit!(byte_level.encode_batch(texts) == expected ? 0 : 1) }
        exit!(2)
      end
      Process.wait(child)
      expect($CHILD_STATUS.exitstatus).to eq(0)
    end
  end
end

RSpec.describe Candle::Tokenizer, "with much text" do
  let(:tokenizer) do
    described_class.from_pretrained(File.expand_path("../fixtures/tokenizers/byte_level_bpe", __dir__))
  end

  it "encodes ten megabytes and can be interrupted" do
    text = "the cat sat on the mat, and so on. " * 300_000
    expect { Timeout.timeout(0.02) { tokenizer.encode(text) } }.to raise_error(Timeout::Error)
    ids = tokenizer.encode("the cat sat on the mat, and so on. " * 1000)
    expect(tokenizer.decode(ids)).to eq("the cat sat on the mat, and so on. " * 1000)
  end

  it "lets other threads work, and stops a batch when asked" do
    texts = ["the cat sat on the mat " * 50] * 100_000
    worker = Thread.new { tokenizer.encode_batch(texts) }
    worker.report_on_exception = false
    # A batch that held the global lock would be over before this thread woke.
    3.times { sleep(0.005) }
    expect(worker).to be_alive
    started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    worker.raise(Interrupt)
    expect { worker.value }.to raise_error(Interrupt)
    expect(Process.clock_gettime(Process::CLOCK_MONOTONIC) - started).to be < 2
  ensure
    worker&.kill
  end
end
