# frozen_string_literal: true

RSpec.describe Candle::Device do
  it "always has a CPU" do
    expect(described_class.available_devices).to include("cpu")
    expect([described_class.cpu.kind, described_class.cpu.index, described_class.cpu.to_s]).to eq([:cpu, 0, "cpu"])
    expect(described_class.cpu.inspect).to eq("#<Candle::Device cpu>")
    expect(described_class.cpu.synchronize).to eq(described_class.cpu)
  end

  it "parses names, symbols and devices" do
    expect(described_class.parse("cuda:1").then { |device| [device.kind, device.index] }).to eq([:cuda, 1])
    expect(described_class.parse("cuda").to_s).to eq("cuda:0")
    expect(described_class.parse(:metal).to_s).to eq("metal:0")
    expect(described_class.parse(" CPU ").kind).to eq(:cpu)
    expect(described_class.parse(described_class.cpu)).to eq(described_class.cpu)
    expect(described_class.parse(:best)).to eq(described_class.best)
    expect(described_class.parse(nil)).to eq(described_class.best)
  end

  it "refuses other names with a hint" do
    ["", "tpu", "cuda:x", "cuda:-1", "cpu:1", "cuda:0:1"].each do |name|
      expect { described_class.parse(name) }.to raise_error(Candle::DeviceError, /unknown device.*"cpu"/), name
    end
  end

  it "is equal by name, also as a Hash key" do
    expect(described_class.parse("cuda:1")).to eq(described_class.parse("cuda:1"))
    expect(described_class.parse("cuda:1")).not_to eq(described_class.parse("cuda"))
    expect(described_class.cpu).not_to eq("cpu")
    expect({ described_class.cpu => 1 }[described_class.parse("cpu")]).to eq(1)
    expect(described_class.cpu).to eql(described_class.parse("cpu"))
  end

  it "opens the best there is" do
    expect(described_class.available_devices).to include(described_class.best.to_s)
    expect(described_class.default).to eq(described_class.best)
  end

  it "refuses names that are not text" do
    expect { Candle::Tensor.zeros([1], device: "\xDE\xAD".b) }.to raise_error(Candle::Error)
    expect { Candle::Tensor.zeros([1], dtype: "\xFF") }.to raise_error(Candle::Error)
  end

  it "says why a device can't be used and what to do" do
    reasons = /cuda:63.*(--features cuda|nvidia-smi|Install|exist)/
    expect { described_class.cuda(63) }.to raise_error(Candle::DeviceError, reasons)
    expect { described_class.metal("1".encode("UTF-16LE")) }.to raise_error(ArgumentError, /index must be an Integer/)
    expect { described_class.metal(63) }.to raise_error(Candle::DeviceError, /metal:63/)
    expect { described_class.cuda("x") }.to raise_error(ArgumentError)
  end

  it "can't be made out of nothing" do
    expect { described_class.allocate }.to raise_error(TypeError)
    expect(described_class.new).to eq(described_class.best)
  end
end
