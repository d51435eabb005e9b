# frozen_string_literal: true

# A bug in native code is an exception, never the end of the process.
RSpec.describe "A native panic" do
  %i[panic_holding_gvl panic_without_gvl].each do |name|
    it "of #{name} is an InternalError that names the place", :gc_stress do
      expect { Candle::SelfTest.public_send(name, "a planned accident") }
        .to raise_error(Candle::InternalError, /a planned accident \(at .*self_test\.rs:\d+:\d+\)/)
    end
  end

  it "leaves the process and the pool able to work, and says nothing on its own" do
    script = <<~RUBY
      20.times do |index|
        Candle::SelfTest.panic_without_gvl("accident")
      rescue Candle::InternalError
        a = Candle::Tensor.ones([300, 300])
        abort "wrong" unless a.matmul(a).sum.item == 300.0**3
      end
      Thread.new { Candle::SelfTest.panic_holding_gvl("accident") rescue puts $!.class }.join
    RUBY
    output, errors, status = run_ruby(script)
    expect([output, errors]).to eq(["Candle::InternalError\n", ""])
    expect(status).to be_success
  end

  it "is an Error and a RuntimeError" do
    expect(Candle::InternalError.ancestors).to include(Candle::Error, RuntimeError)
  end
end
