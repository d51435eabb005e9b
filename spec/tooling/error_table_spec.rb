# frozen_string_literal: true

require_relative "../../rakelib/support/error_table"

RSpec.describe Tasks::ErrorTable do
  it "is in docs/reference/errors.md as the sources have it" do
    expect(File.read(described_class::PAGE)).to eq(described_class.new.page), "run rake doc:errors"
  end

  it "finds messages of Ruby and of Rust, with what is filled in left out" do
    messages = described_class.new.messages
    expect(messages["ArgumentError"]).to include("… must be a positive Integer, not …")
    expect(messages["ModelNotFoundError"]).to include("there is no file or directory …")
    expect(messages.values.flatten.grep(/#\{|\{\w/)).to be_empty
  end

  it "explains every class" do
    page = File.read(described_class::PAGE)
    classes = Candle.constants.map { |name| Candle.const_get(name) }
                    .select { |constant| constant.is_a?(Class) && constant < Candle::Error }
    names = classes.map { |error| error.name.delete_prefix("Candle::") }
    expect(names).to all(satisfy { |name| page.include?("| `#{name}` |") })
  end

  it "is written in plain English" do
    stilted = /\b(is|are) no (?!more|longer)\w|can't be had|that is none|what lacks/
    said = described_class.new.messages.values.flatten.reject { |text| text.match?(/\bthere (is|are) no\b/) }
    expect(said.grep(stilted)).to be_empty
  end
end
