# frozen_string_literal: true

require "fileutils"
require "json"
require "tmpdir"

# Whisper as OpenAI and whisper.cpp publish it.
RSpec.describe Candle::Transcriber do
  folder = TinyModels.path("speech/originals")
  let(:folder) { folder }
  expected = JSON.parse(File.read(File.join(folder, "expected.json")))
  let(:wav) { File.expand_path("../fixtures/audio/tones.wav", __dir__) }

  def load(path, **options)
    described_class.from_pretrained(path, device: "cpu", **options)
  end

  # A directory with some of the files.
  def with(folder, *names)
    Dir.mktmpdir do |directory|
      names.each { |name| File.write(File.join(directory, name), File.binread(File.join(folder, name)), mode: "wb") }
      yield directory
    end
  end

  { "tiny.pt" => "pt", "ggml-tiny.bin" => "ggml" }.each do |name, key|
    it "writes what openai-whisper writes with #{name}" do
      path = File.join(folder, name)
      model = load(path)
      result = model.transcribe(wav, language: "en")
      expect(result.token_ids).to eq(expected.dig(key, "token_ids"))
      expect(result.text).to eq(expected.dig(key, "text"))
      expect(model.languages).to eq(%w[en zh])
      expect(model.tokenizer.encode("the <|zh|>", add_special_tokens: false).last).to eq(267)
      expect(Candle::ModelKind.of(path)).to eq(:speech)
      with(folder, name, "multilingual.tiktoken") do |directory|
        expect(load(directory).transcribe(wav, language: "en").token_ids).to eq(result.token_ids)
      end
    end

    it "times the words of #{name} as openai-whisper does" do
      words = load(File.join(folder, name)).transcribe(wav, language: "en", timestamps: :word).words
      wanted = expected.fetch(key).fetch("words")
      expect(words.map { |word| word[:text] }).to eq(wanted.map { |word| word["word"] })
      %i[start end].each do |edge|
        off = words.zip(wanted).map { |word, other| (word[edge] - other[edge.to_s]).abs }
        expect(off).to all(be <= 0.02), "#{edge}: #{words}"
      end
      off = words.zip(wanted).map { |word, other| (word[:probability] - other["probability"]).abs }
      expect(off).to all(be < 1e-4)
    end
  end

  # @return [Array<Array>] names, shapes and bytes
  def safetensors(path)
    file = File.binread(path)
    size = file.unpack1("Q<")
    JSON.parse(file[8, size]).except("__metadata__").map do |name, tensor|
      from, to = tensor["data_offsets"]
      [name, tensor["shape"], file[8 + size + from, to - from]]
    end
  end

  # GGUF with tensors of f16.
  def write_gguf(path, tensors)
    text = ->(value) { [value.bytesize, value].pack("Q<a*") }
    entries = [text["general.architecture"], [8].pack("L<"), text["whisper"]]
    body = tensors.reduce("".b) do |before, (name, shape, bytes)|
      entries << text[name] << [shape.size, *shape.reverse, 1, before.bytesize].pack("L<Q<#{shape.size}L<Q<")
      aligned(before + bytes)
    end
    File.binwrite(path, aligned(["GGUF", 3, tensors.size, 1].pack("a4L<Q<Q<") + entries.join) + body)
  end

  def aligned(bytes) = bytes + ("\0" * (-bytes.bytesize % 32))

  it "reads GGUF files with transformers' names beside a config.json" do
    source = File.join(File.dirname(folder), "whisper")
    wanted = load(source).transcribe(wav, language: "en")
    Dir.mktmpdir do |directory|
      Dir[File.join(source, "*.json")].each { |file| FileUtils.cp(file, directory) }
      write_gguf(File.join(directory, "model.gguf"), safetensors(File.join(source, "model.safetensors")))
      expect(load(directory).transcribe(wav, language: "en")).to eq(wanted)
      FileUtils.rm(File.join(directory, "config.json"))
      expect { load(directory) }.to raise_error(Candle::UnsupportedModelError, /GGUF/)
    end
  end

  it "says what is missing or wrong" do
    with(folder, "tiny.pt") do |directory|
      expect { load(directory) }.to raise_error(Candle::TokenizerError, /multilingual.tiktoken/)
      File.write(File.join(directory, "other.pt"), "")
      expect { load(directory) }.to raise_error(Candle::ModelNotFoundError, /gguf_file:.*other.pt, tiny.pt/)
      expect { load(directory, gguf_file: "other.pt") }.to raise_error(Candle::CorruptModelError, /empty/)
      tokenizer = File.join(File.dirname(folder), "whisper")
      expect { load(directory, gguf_file: "tiny.pt", tokenizer: tokenizer) }
        .to raise_error(Candle::CorruptModelError, /vocabulary/)
    end
    with(folder, "ggml-tiny.bin") do |directory|
      path = File.join(directory, "ggml-tiny.bin")
      whole = File.binread(path)
      { whole[0, 3000] => /too early/, whole[0, whole.size - 5] => /too early/,
        whole.sub("lmgg", "lmgx") => /PyTorch/, whole.dup.tap { |bytes| bytes[4, 4] = [99].pack("V") } => /vocabulary/,
        whole.dup.tap { |bytes| bytes[20, 4] = [9].pack("V") } => /layers/ }.each do |bytes, reason|
        File.binwrite(path, bytes)
        expect { load(path) }.to raise_error(Candle::CorruptModelError, reason)
      end
    end
  end
end
