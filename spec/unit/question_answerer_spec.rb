# frozen_string_literal: true

require "json"

RSpec.describe Candle::QuestionAnswerer do
  let(:folder) { "spec/fixtures/tiny/bert-question" }
  let(:model) { described_class.from_pretrained(folder, device: "cpu") }
  let(:cases) { JSON.parse(File.read(File.join(folder, "answers.json")), symbolize_names: true) }

  it "answers as transformers' pipeline does, with character offsets" do
    cases.each do |entry|
      options = entry.slice(:top_k, :max_answer_length, :no_answer, :stride)
      found = [model.answer(entry[:question], entry[:context], **options)].flatten
      wanted = entry[:answers]
      expect(found.map { |answer| answer.except(:score) }).to eq(wanted.map { |answer| answer.except(:score) })
      found.zip(wanted) { |answer, other| expect(answer[:score]).to be_within(1e-5).of(other[:score]) }
      found.each { |answer| expect(entry[:context][answer[:start]...answer[:end]]).to eq(answer[:text]) }
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
