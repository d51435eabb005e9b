# frozen_string_literal: true

require "stringio"

module Candle
  class Server
    # Runs a Rack application on Puma, until a signal ends it: TERM and INT let running answers end.
    class Launcher
      # Threads that answer at once while all others compute or wait.
      SPARE_THREADS = 16
      # As many arenas as keep memory from growing with the number of threads; measured in docs/internals/server.md.
      ARENAS = 2
      private_constant :SPARE_THREADS, :ARENAS

      # What a process that serves does first, before models are loaded.
      #
      # @return [void]
      def self.prepare
        Utils.limit_arenas(ARENAS)
      end

      # @param port [Object]
      # @return [Integer] the same
      # @raise [ArgumentError] for an invalid port
      def self.checked_port(port)
        return port if port.is_a?(Integer) && port.between?(0, 65_535)

        raise ArgumentError, "port must be an Integer from 0 to 65535, not #{Arguments.shown(port)}"
      end

      # @param app [#call] a Rack application with `limits`, such as {Server} or {Worker}
      # @param host [String]
      # @param port [Integer] 0 takes any that is free
      # @param workers [Integer] processes that share the weights; 0 is this one alone
      # @param output [IO] gets one line when the server listens
      # @yieldparam uri [String] where it listens, once it does
      # @raise [ArgumentError] for a port out of range
      def initialize(app, host: "127.0.0.1", port: 8080, workers: 0, output: $stdout, &listening)
        @app = app
        @host = host
        @port = self.class.checked_port(port)
        @workers = workers
        @output = output
        @listening = listening
      end

      # Returns when the server has ended.
      #
      # @return [void]
      # @raise [Error] when Puma is not installed, or the address is taken
      def run
        load_puma
        launcher = build
        announce(launcher)
        launcher.run
      rescue Errno::EADDRINUSE, Errno::EACCES, Errno::EADDRNOTAVAIL, SocketError => e
        raise Error, "can't listen on #{@host}:#{@port}: #{e.message}"
      end

      private

      def load_puma
        require "puma"
        require "puma/configuration"
        require "puma/launcher"
        require "puma/server"
        PumaRepairs.apply
      rescue LoadError
        raise Error, "the server runs on Puma, which is not installed: gem install puma"
      end

      def build
        configuration = configuration()
        # Since version 6 what Puma writes has a class of its own.
        if Puma.const_defined?(:LogWriter)
          Puma::Launcher.new(configuration, log_writer: Puma::LogWriter.new(StringIO.new, $stderr),
                                            events: Puma::Events.new)
        else
          Puma::Launcher.new(configuration, events: Puma::Events.new(StringIO.new, $stderr))
        end
      end

      def configuration
        threads = @app.limits.running + @app.limits.waiting + SPARE_THREADS
        address = @host.include?(":") && !@host.start_with?("[") ? "[#{@host}]" : @host
        Puma::Configuration.new({ config_files: ["-"] }) do |config|
          config.bind("tcp://#{address}:#{@port}")
          config.threads(0, threads)
          config.workers(@workers)
          config.preload_app! if @workers.positive?
          config.environment("production")
          config.raise_exception_on_sigterm(false)
          config.quiet
          # Puma 5 writes the body into a file first, whatever its size.
          config.http_content_length_limit(largest_body) if config.respond_to?(:http_content_length_limit)
          config.app(@app)
        end
      end

      # Uploads may be larger than other requests.
      def largest_body
        limits = @app.limits
        [limits.body_bytes, limits.file_bytes + (64 * 1024)].max
      end

      def announce(launcher)
        events = launcher.events
        booted = lambda do
          address = @host.include?(":") && !@host.start_with?("[") ? "[#{@host}]" : @host
          uri = "http://#{address}:#{launcher.connected_ports.first || @port}"
          @output.puts "listening on #{uri}"
          @output.flush
          @listening&.call(uri)
        end
        events.respond_to?(:after_booted) ? events.after_booted(&booted) : events.on_booted(&booted)
      end
    end
  end
end
