# frozen_string_literal: true

require "logger"

module Candle
  # What {Candle.configure_logging} yields: the settings of the logger to be built.
  class LoggingConfiguration
    # @return [Integer] a level of `Logger`
    attr_accessor :level
    # @return [IO, String] where messages go
    attr_accessor :output
    # @return [Proc, nil] a formatter as `Logger#formatter=` takes it
    attr_accessor :formatter

    def initialize
      @level = ENV["CANDLE_VERBOSE"].to_s.match?(/\A(1|true|yes|on)\z/i) ? Logger::DEBUG : Logger::WARN
      @output = $stderr
      @formatter = nil
    end

    # Everything, debug messages included.
    # @return [void]
    def verbose!
      @level = Logger::DEBUG
    end

    # Errors only.
    # @return [void]
    def quiet!
      @level = Logger::ERROR
    end

    # Nothing at all.
    # @return [void]
    def silent!
      @level = Logger::FATAL + 1
    end

    # @return [Logger] a logger with these settings
    def build
      Logger.new(@output, progname: "red-candle", level: @level, formatter: @formatter)
    end
  end

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
  end
end
