# frozen_string_literal: true

require "json"
require "stringio"
require "time"
require "timeout"
require "tmpdir"

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
    expect(configured(&:info!)).to eq(%w[info warn error fatal])
    output.truncate(0)
    expect(configured(&:quiet!)).to eq(%w[warn error fatal])
    output.truncate(0)
    expect(configured(&:silent!)).to eq(%w[error fatal])
    output.truncate(0)
    expect(configured(&:disable!)).to eq([])
    expect(configured { |config| config.level = Logger::INFO }).to eq(%w[info warn error fatal])
    output.truncate(0)
    expect(configured { |config| config.level = "Error" }).to eq(%w[error fatal])
  end

  it "takes a formatter" do
    configured { |config| config.formatter = ->(severity, _time, _name, message) { "#{severity}|#{message}\n" } }
    expect(output.string).to start_with("WARN|said warn\n")
  end

  it "knows formatters by name" do
    configured { |config| config.formatter = :json }
    line = JSON.parse(output.string.lines.first)
    expect(line).to include("level" => "WARN", "message" => "said warn", "program" => "red-candle")
    expect(Time.iso8601(line["timestamp"])).to be_within(60).of(Time.now)
    output.truncate(output.rewind)
    configured { |config| config.formatter = :simple }
    expect(output.string.lines.first).to eq("said warn\n")
    output.truncate(output.rewind)
    configured { |config| config.formatter = :detailed }
    expect(output.string.lines.first).to match(/\A\[\d{4}-\d\d-\d\d [\d:]{8}\] WARN: said warn\n\z/)
    expect { configured { |config| config.formatter = :xml } }
      .to raise_error(ArgumentError, "formatter must be one of :simple, :detailed, :json, not :xml")
    expect { configured { |config| config.level = :loud } }.to raise_error(ArgumentError, /:debug, :info.*not :loud/)
  end

  it "writes to a file or to standard output" do
    Dir.mktmpdir do |directory|
      path = File.join(directory, "candle.log")
      Candle.configure_logging { |config| config.log_to_file!(path) }
      Candle.logger.warn("into the file")
      expect(File.read(path)).to include("into the file")
    end
    printed, = run_ruby(%(Candle.configure_logging(&:log_to_stdout!).warn("on the screen")))
    expect(printed).to include("on the screen")
    expect(Candle::LoggerConfig).to be(Candle::LoggingConfiguration)
  end

  it "takes any logger, and returns the one it builds" do
    Candle.logger = Logger.new(output, level: Logger::ERROR)
    expect(say_everything).to eq(%w[error fatal])
    expect(Candle.configure_logging).to be(Candle.logger)
  end

  it "goes to standard error, and says more with CANDLE_VERBOSE" do
    script = %(Candle.logger.debug("low"); Candle.logger.warn("high"))
    output, errors, = run_ruby(script, { "CANDLE_VERBOSE" => nil })
    expect([output, errors.scan(/low|high/)]).to eq(["", ["high"]])
    %w[1 true yes].each do |value|
      expect(run_ruby(script, { "CANDLE_VERBOSE" => value })[1].scan(/low|high/)).to eq(%w[low high])
    end
    expect(run_ruby(script, { "CANDLE_VERBOSE" => "0" })[1].scan(/low|high/)).to eq(["high"])
  end

  describe "what the engine says" do
    def say = Candle.send(:log_from_engine, :info, "a message")

    it "is lost with a logger that fails, and nothing else is" do
      Candle.logger = Class.new { def info(_message) = raise(IOError, "the disk is full") }.new
      expect(say).to be_nil
    end

    it "does not swallow what is raised from outside meanwhile" do
      started = Queue.new
      Candle.logger = Class.new { define_method(:info) { |_message| (started << true) && sleep(0.2) } }.new
      ended = []
      [->(thread) { thread.raise(RuntimeError, "enough") }, :kill.to_proc].each do |interrupt|
        thread = Thread.new { say && (ended << :not_interrupted) }
        thread.report_on_exception = false
        started.pop
        interrupt.call(thread)
        thread.join
      rescue RuntimeError => e
        ended << e.message
      end
      expect(ended).to eq(["enough"])
      expect { Timeout.timeout(0.05) { say } }.to raise_error(Timeout::Error)
    end
  end
end
