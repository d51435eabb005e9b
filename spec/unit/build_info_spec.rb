# frozen_string_literal: true

RSpec.describe Candle::BuildInfo do
  it "answers for every optional part" do
    answers = %i[cuda_available? cudnn_available? metal_available? mkl_available? accelerate_available?]
              .map { |name| described_class.public_send(name) }
    expect(answers).to all(be(true).or(be(false)))
    expect(described_class.metal_available?).to eq(RUBY_PLATFORM.include?("darwin"))
  end

  it "sums up version, devices and threads" do
    summary = described_class.summary
    expect(summary).to include(version: Candle::VERSION, engine_version: Candle::VERSION, debug: false)
    expect(summary[:available_devices]).to include(summary[:default_device])
    expect(summary[:threads]).to eq(Candle.num_threads)
    expect(summary[:target]).to match(/\A\w+-(linux|macos)\z/)
    expect(Candle.build_info).to eq(summary)
  end

  it "keeps native methods to itself" do
    [described_class, Candle::Tensor, Candle::Device, Candle::DType].each do |owner|
      expect(owner.singleton_methods.grep(/\A_/)).to be_empty
    end
    [Candle::Tensor, Candle::Device, Candle::DType].each do |owner|
      expect(owner.public_instance_methods(false).grep(/\A_/)).to be_empty
    end
  end
end
