# frozen_string_literal: true

# The engine keeps a few large buffers for the next layer, unless the system's allocator is asked for.
RSpec.describe "The allocator" do
  def kept_bytes(environment = {})
    script = "(Candle::Tensor.zeros([1024, 1024]) + 1).to_a\nGC.start\nputs Candle::SelfTest.kept_bytes"
    output, errors, status = run_ruby(script, environment)
    raise errors unless status.success?

    Integer(output)
  end

  it "keeps buffers of megabytes within its bounds" do
    expect(kept_bytes).to be_between(4 << 20, 64 << 20)
  end

  it "is the system's with CANDLE_ALLOCATOR=system" do
    expect(kept_bytes("CANDLE_ALLOCATOR" => "system")).to eq(0)
    expect(kept_bytes("CANDLE_ALLOCATOR" => "")).to be > 0
  end
end
