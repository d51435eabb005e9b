# frozen_string_literal: true

require "spec_helper"
require "json"

# Reference values by Hugging Face's tokenizers: spec/fixtures/make_tokenizers.py.
RSpec.describe "Tokenizer parity" do
  fixtures = File.expand_path("../fixtures/tokenizers", __dir__)
  kinds = %w[wordpiece byte_level_bpe sentencepiece unigram]

  kinds.each do |kind|
    describe kind do
      let(:tokenizer) { Candle::Tokenizer.from_pretrained(File.join(fixtures, kind)) }
      let(:reference) { JSON.parse(File.read(File.join(fixtures, kind, "reference.json")), symbolize_names: true) }
      let(:fields) { %i[ids tokens offsets word_ids type_ids special_tokens_mask] }

      it "encodes texts like the reference" do
        reference[:texts].each do |expected|
          actual = tokenizer.encode_with_offsets(expected[:text])
          expect(actual.slice(*fields)).to eq(expected.slice(*fields)), expected[:text].inspect
          expect(tokenizer.encode(expected[:text])).to eq(expected[:ids])
          expect(tokenizer.encode(expected[:text], add_special_tokens: false)).to eq(expected[:plain_ids])
        end
      end

      it "encodes pairs like the reference" do
        reference[:pairs].each do |expected|
          first, second = expected[:pair]
          actual = tokenizer.encode_with_offsets(first, pair: second)
          expect(actual.slice(*fields)).to eq(expected.slice(*fields))
        end
      end

      it "truncates pairs like the reference" do
        reference[:truncated].each do |expected|
          limited = tokenizer.with_truncation(9, strategy: expected[:strategy], direction: expected[:direction])
          ids = limited.encode("the cat", pair: "Where did the cat sit? On the mat.")
          expect(ids).to eq(expected[:ids]), expected.inspect
        end
      end

      it "decodes like the reference" do
        reference[:texts].each do |expected|
          expect(tokenizer.decode(expected[:ids])).to eq(expected[:decoded])
          expect(tokenizer.decode(expected[:ids], skip_special_tokens: false)).to eq(expected[:decoded_with_special])
        end
        reference[:random].each { |expected| expect(tokenizer.decode(expected[:ids])).to eq(expected[:decoded]) }
      end

      it "gives the same for a batch" do
        texts = reference[:texts].map { |expected| expected[:text] }
        expect(tokenizer.encode_batch(texts)).to eq(reference[:texts].map { |expected| expected[:ids] })
        expect(tokenizer.encode_batch_to_tokens(texts)).to eq(reference[:texts].map { |expected| expected[:tokens] })
      end

      it "knows the size of the vocabulary" do
        expect(tokenizer.vocab_size).to eq(reference[:vocab_size])
        expect(tokenizer.get_vocab.size).to eq(reference[:vocab_size])
      end

      it "gives the same ids from a GGUF file" do
        gguf = Candle::Tokenizer.from_pretrained(File.join(fixtures, "gguf", "#{kind}.gguf"))
        # The file has no key for the Unicode form that this vocabulary was trained on.
        texts = reference[:texts].reject { |expected| kind == "unigram" && !expected[:text].ascii_only? }
        texts.each do |expected|
          expect(gguf.encode(expected[:text])).to eq(expected[:ids]), expected[:text].inspect
          expect(gguf.decode(expected[:ids])).to eq(expected[:decoded])
        end
      end
    end
  end

  { "vocab_txt" => "wordpiece", "vocab_json" => "byte_level_bpe" }.each do |folder, kind|
    it "gives the ids of #{kind} from the plain files of #{folder}" do
      reference = JSON.parse(File.read(File.join(fixtures, kind, "reference.json")), symbolize_names: true)
      tokenizer = Candle::Tokenizer.from_pretrained(File.join(fixtures, folder))
      reference[:texts].each { |expected| expect(tokenizer.encode(expected[:text])).to eq(expected[:ids]) }
    end
  end

  # Vocabulary-only GGUF files with the ids that llama.cpp expects, where a developer has put them:
  # ggml-vocab-*.gguf with .inp and .out, from the sources of llama-cpp-python 0.3.12.
  describe "vocabularies of real models" do
    directory = File.join(Tasks::Build.cache_directory, "vocabularies")
    files = Dir[File.join(directory, "ggml-vocab-*.gguf")].select { |file| File.exist?("#{file}.out") }.sort
    if files.empty?
      RSpec.configuration.reporter.message("no real vocabularies in #{directory}: their parity is not checked")
    end

    files.each do |file|
      it "gives the known ids for #{File.basename(file)}" do
        tokenizer = Candle::Tokenizer.from_pretrained(file)
        texts = File.read("#{file}.inp").split("\n__ggml_vocab_test__\n")
        outputs = File.read("#{file}.out").split("\n", -1).map { |line| line.split.map(&:to_i) }
        differing = texts.zip(outputs).reject { |text, ids| tokenizer.encode(text, add_special_tokens: false) == ids }
        expect(texts.length).to be > 20
        expect(differing).to be_empty
      end
    end
  end
end
