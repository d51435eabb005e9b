# frozen_string_literal: true

require_relative "../../rakelib/support/metal/budget"

RSpec.describe Tasks::Metal::Budget do
  def cost(**numbers)
    none = { commands: 0, barriers: 0, encoders: 0, command_buffers: 0, waits: 0, buffers: 0, read: 0, written: 0,
             copied: 0, floor: 1000, left: 0 }
    described_class::Cost.new(**none, **numbers, kernels: {})
  end

  def count(layer: {}, whole: {})
    described_class::Count.new(cost(**layer), cost(**whole))
  end

  let(:theirs) { count(whole: { commands: 100 }) }
  let(:limits) { described_class::Limits.of(read: 1.1, copied: 8, share: 0.5) }

  def exceeded(**ours)
    described_class.exceeded("llama", count(**ours), theirs, limits:)
  end

  it "lets pass what keeps within the limits" do
    whole = { commands: 50, command_buffers: 1, waits: 1, read: 1100, copied: 8 }
    expect(exceeded(layer: { commands: 9 }, whole:)).to be_empty
  end

  {
    "commands of a layer" => { layer: { commands: 10 } }, "buffers of a layer" => { layer: { buffers: 1 } },
    "waits" => { whole: { waits: 2 } }, "command buffers" => { whole: { command_buffers: 2 } },
    "bytes read" => { whole: { read: 1101 } }, "autoreleased objects left" => { whole: { left: 1 } },
    "bytes copied" => { whole: { copied: 9 } }, "commands, by candle's" => { whole: { commands: 51 } }
  }.each do |what, ours|
    it "names #{what} beyond their limit" do
      expect(exceeded(**ours)).to contain_exactly(start_with("llama: #{what}"))
    end
  end

  it "reads what the program prints" do
    output = "weights\t900\ncache\t100\nhost waits\t1\nbuffers\t3\nobjects left\t2\n" \
             "kernel\trope_f16\t2\t10\t20\t40\nkernel\tblit copy\t1\t1\t2\t4\n"
    found = described_class.parse(output)
    expect(found).to have_attributes(commands: 3, read: 11, written: 22, copied: 2, waits: 1, buffers: 3, left: 2,
                                     floor: 1000)
    expect(found.kernels).to eq("rope_f16" => 2, "blit copy" => 1)
  end

  it "knows a layer by the difference of two models" do
    many, few = [8, 5].map do |number|
      described_class.parse("kernel\trope_f16\t#{number}\t0\t0\t0\nbarriers\t#{number}\n")
    end
    expect(many - few).to have_attributes(commands: 3, barriers: 3, kernels: { "rope_f16" => 3 })
  end
end
