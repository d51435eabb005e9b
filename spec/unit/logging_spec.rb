# frozen_string_literal: true

require "stringio"

RSpec.describe "Candle.logger" do
  around do |example|
    previous = Candle.logger
    example.run
  ensure
    Candle.logger = previous
  end

  let(:output) { StringIO.new }

  def say_everything
    %i[debug info warn error fatal].each { |level| Candle.logger.public_send(level, "said #{level}") }
    output.string.scan(/said (\w+)/).flatten
  end

  def configured(&block)
    Candle.configure_logging do |config|
      config.output = output
      block&.call(config)
    end
    say_everything
  end

  it "says warnings and worse by default" do
    expect(configured).to eq(%w[warn error fatal])
    expect(output.string).to include("red-candle")
  end

  it "can say more, less, or nothing" do
    expect(configured(&:verbose!)).to eq(%w[debug info warn error fatal])
    output.truncate(0)
    expect(configured(&:quiet!)).to eq(%w[error fatal])
    output.truncate(0)
    expect(configured(&:silent!)).to eq([])
    expect(configured { |config| config.level = Logger::INFO }).to eq(%w[info warn error fatal])
  end

  it "takes a formatter" do
    configured { |config| config.formatter = ->(severity, _time, _name, message) { "#{severity}|#{message}\n" } }
    expect(output.string).to start_with("WARN|said warn\n")
  end

  it "takes any logger, and returns the one it builds" do
    Candle.logger = Logger.new(output, level: Logger::ERROR)
    expect(say_everything).to eq(%w[error fatal])
    expect(Candle.configure_logging).to be(Candle.logger)
  end

  it "goes to standard error, and says more with CANDLE_VERBOSE" do
    script = %(Candle.logger.debug("low"); Candle.logger.warn("high"))
    output, errors, = run_ruby(script, "CANDLE_VERBOSE" => nil)
    expect([output, errors.scan(/low|high/)]).to eq(["", ["high"]])
    %w[1 true yes].each do |value|
      expect(run_ruby(script, "CANDLE_VERBOSE" => value)[1].scan(/low|high/)).to eq(%w[low high])
    end
    expect(run_ruby(script, "CANDLE_VERBOSE" => "0")[1].scan(/low|high/)).to eq(["high"])
  end
end
