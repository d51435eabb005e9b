# frozen_string_literal: true

module Candle
  class CLI
    # `red-candle worker`.
    #
    # @api private
    class Work < Verb
      # @return [void]
      def call
        token = checked_token
        Server::Launcher.checked_port(options[:port])
        callback = options[:callback_url]
        Worker::Callback.new(callback)
        Server::Launcher.prepare
        worker = Worker.new(worker_id: options[:worker_id], model: options[:model], device: options[:device],
                            token: token)
        launcher = Server::Launcher.new(worker, host: options[:host], port: options[:port]) do |uri|
          Thread.new { announce(worker, callback, uri) }
        end
        launcher.run
      end

      private

      # Without an orchestrator that knows of it the worker is of no use.
      def announce(worker, callback, uri)
        worker.announce(callback, uri)
      rescue Error => e
        warn "red-candle: #{e.message}"
        Process.kill("TERM", Process.pid)
      end
    end
  end
end
