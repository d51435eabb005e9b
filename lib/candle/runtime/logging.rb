# frozen_string_literal: true

require "json"
require "logger"

module Candle
  # What {Candle.configure_logging} yields: the settings of the logger to be built.
  class LoggingConfiguration
    # What `level=` takes by name.
    LEVELS = { debug: Logger::DEBUG, info: Logger::INFO, warn: Logger::WARN, error: Logger::ERROR,
               fatal: Logger::FATAL }.freeze

    # What `formatter=` takes by name: the message alone, with time and level, or one JSON object per line.
    FORMATTERS = {
      simple: ->(_level, _time, _program, message) { "#{message}\n" },
      detailed: ->(level, time, _program, message) { "[#{time.strftime("%F %T")}] #{level}: #{message}\n" },
      json: lambda do |level, time, program, message|
        timestamp = time.strftime(time.utc? ? "%FT%TZ" : "%FT%T%:z")
        "#{JSON.generate({ timestamp: timestamp, level: level, message: message.to_s, program: program })}\n"
      end
    }.freeze

    # @return [Integer] a level of `Logger`
    attr_reader :level
    # @return [IO, String] where messages go: an IO or the path of a file
    attr_accessor :output
    # @return [Proc, nil] a formatter as `Logger#formatter=` takes it
    attr_reader :formatter

    def initialize
      @level = ENV["CANDLE_VERBOSE"].to_s.match?(/\A(1|true|yes|on)\z/i) ? Logger::DEBUG : Logger::WARN
      @output = $stderr
      @formatter = nil
    end

    # @param level [Integer, Symbol, String] a level of `Logger`, or the name of one of {LEVELS}
    # @raise [ArgumentError] for another name
    def level=(level)
      @level = level.is_a?(Integer) ? level : named(LEVELS, level, "level")
    end

    # @param formatter [#call, Symbol, nil] as `Logger#formatter=` takes it, or the name of one of {FORMATTERS}
    # @raise [ArgumentError] for another name
    def formatter=(formatter)
      given = formatter.nil? || formatter.respond_to?(:call)
      @formatter = given ? formatter : named(FORMATTERS, formatter, "formatter")
    end

    # Everything, debug messages included.
    # @return [void]
    def verbose!
      @level = Logger::DEBUG
    end

    # What happens, and warnings and errors.
    # @return [void]
    def info!
      @level = Logger::INFO
    end

    # Warnings and errors, as by default.
    # @return [void]
    def quiet!
      @level = Logger::WARN
    end

    # Errors only.
    # @return [void]
    def silent!
      @level = Logger::ERROR
    end

    # Nothing at all.
    # @return [void]
    def disable!
      @level = Logger::FATAL + 1
    end

    # @return [void]
    def log_to_stdout!
      @output = $stdout
    end

    # @param path [String, Pathname] a file that messages are appended to
    # @return [void]
    def log_to_file!(path)
      @output = path.to_s
    end

    # @return [Logger] a logger with these settings
    def build
      Logger.new(@output, progname: "red-candle", level: @level, formatter: @formatter)
    end

    private

    def named(table, name, what)
      table.fetch(name.respond_to?(:to_sym) ? name.downcase.to_sym : name) do
        raise ArgumentError, "#{what} must be one of #{table.keys.map(&:inspect).join(", ")}, not #{name.inspect}"
      end
    end
  end

  # The name that 1.8 has for it.
  LoggerConfig = LoggingConfiguration

  class << self
    # The logger of everything that red-candle says. By default warnings go to standard error;
    # `CANDLE_VERBOSE=1` adds the rest.
    #
    # @return [Logger]
    def logger
      @logger ||= LoggingConfiguration.new.build
    end

    # @param logger [Logger] anything that answers `debug`, `info`, `warn` and `error`
    attr_writer :logger

    # Builds a new logger.
    #
    # @example
    #   Candle.configure_logging { |config| config.quiet! }
    #
    # @yieldparam config [LoggingConfiguration]
    # @return [Logger] the new logger
    def configure_logging
      configuration = LoggingConfiguration.new
      yield configuration if block_given?
      @logger = configuration.build
    end

    private

    # Says what the engine has to say. A logger that fails loses its message only; what comes from outside
    # meanwhile (`Timeout`, `Thread#raise`, `Thread#kill`) waits for the logger, and is then raised.
    def log_from_engine(level, message)
      Thread.handle_interrupt(Object => :never) do
        logger.public_send(level, message)
      rescue StandardError
        nil
      end
    end
  end
end
