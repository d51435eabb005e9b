# frozen_string_literal: true

RSpec.describe Candle::Error do
  names = %i[ModelNotFoundError DownloadError OfflineError UnsupportedModelError CorruptModelError DeviceError
             OutOfMemoryError TokenizerError InvalidInputError GenerationError StructuredOutputError InterruptedError
             AgentMaxIterationsError InternalError]

  names.each do |name|
    it "is the parent of #{name}, so that rescue RuntimeError works" do
      error = Candle.const_get(name)
      expect(error.superclass).to be(described_class)
      expect { raise error, "why" }.to raise_error(RuntimeError, "why")
    end
  end

  it "has no other children" do
    children = Candle.constants.map { |name| Candle.const_get(name) }
                     .select { |constant| constant.is_a?(Class) && constant < described_class }
    expect(children.map { |child| child.name.split("::").last.to_sym }).to match_array(names)
  end

  it "keeps the partial text of a structured answer" do
    error = Candle::StructuredOutputError.new("cut off")
    error.partial = "{\"a\":"
    expect(error.partial).to eq("{\"a\":")
  end
end
