# frozen_string_literal: true

require "fileutils"
require "json"
require "tmpdir"

RSpec.describe Candle::QuestionAnswerer do
  let(:folder) { TinyModels.path("bert-question") }
  let(:model) { described_class.from_pretrained(folder, device: "cpu") }
  let(:cases) { JSON.parse(File.read(File.join(folder, "answers.json")), symbolize_names: true) }

  # As many answers as asked for, equal in text, place and score.
  def expect_answers(model, cases) # rubocop:disable Metrics/AbcSize
    cases.each do |entry|
      options = entry.slice(:top_k, :max_answer_length, :no_answer, :stride)
      found = [model.answer(entry[:question], entry[:context], **options)].flatten
      wanted = entry[:answers]
      expect(found.map { |answer| answer.except(:score) }).to eq(wanted.map { |answer| answer.except(:score) })
      found.zip(wanted) { |answer, other| expect(answer[:score]).to be_within(1e-5).of(other[:score]) }
      found.each { |answer| expect(entry[:context][answer[:start]...answer[:end]]).to eq(answer[:text]) }
    end
  end

  it "answers as transformers' pipeline does, with character offsets" do
    expect_answers(model, cases)
  end

  seeded = File.join(SeededModels::FIXTURES, "seeded_answerers")

  Dir.children(seeded).sort.each do |name|
    it "answers as transformers does with #{name}" do
      files = %w[config.json tokenizer.json tokenizer_config.json].map { |file| File.join(seeded, name, file) }
      tensors, expected = %w[tensors.json expected.json].map { |file| File.read(File.join(seeded, name, file)) }
      Dir.mktmpdir("seeded") do |folder|
        FileUtils.cp(files, folder)
        File.binwrite(File.join(folder, "model.safetensors"), SeededModels.safetensors(JSON.parse(tensors)))
        model = described_class.from_pretrained(folder, device: "cpu")
        expect_answers(model, JSON.parse(expected, symbolize_names: true)[:cases])
      end
    end
  end

  it "refuses more layers in a group than a model has, and than its file has" do
    config = JSON.parse(File.read(File.join(seeded, "albert-groups", "config.json")))
    { 1024 => /layers/, 3 => /layers/, 1_000_000 => /inner_group_num/,
      "two" => /inner_group_num/ }.each do |count, message|
      Dir.mktmpdir("seeded") do |folder|
        FileUtils.cp(%w[tokenizer.json tokenizer_config.json].map { |file| File.join(seeded, "albert-groups", file) },
                     folder)
        File.write(File.join(folder, "config.json"), JSON.generate(config.merge("inner_group_num" => count)))
        tensors = JSON.parse(File.read(File.join(seeded, "albert-groups", "tensors.json")))
        File.binwrite(File.join(folder, "model.safetensors"), SeededModels.safetensors(tensors))
        expect { described_class.from_pretrained(folder) }.to raise_error(Candle::CorruptModelError, message)
      end
    end
  end

  it "gives one Hash, and an Array for several answers" do
    expect(model.answer("who?", "the dog").keys).to eq(%i[text score start end])
    expect(model.answer("who?", "the dog", top_k: 2)).to be_an(Array)
    expect(model.answer("who?", "")).to be_nil
  end

  it "refuses what is no text, no count, and questions without room for a context" do
    expect { model.answer(1, "the dog") }.to raise_error(Candle::InvalidInputError)
    expect { model.answer("who?", "the dog", top_k: 0) }.to raise_error(ArgumentError, /top_k/)
    expect { model.answer("who?", "a dog", max_answer_length: nil) }.to raise_error(ArgumentError, /max_answer_length/)
    expect { model.answer("what is it " * 20, "the dog") }.to raise_error(Candle::InvalidInputError, /question/)
  end

  it "reads windows of the model's length" do
    expect(model.max_length).to eq(40)
    expect(Candle::ModelKind.of(folder)).to eq(:question_answering)
  end
end
