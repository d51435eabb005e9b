# frozen_string_literal: true

require "json"
require "time"

module Candle
  class Server
    # One line of JSON per request, through {Candle.logger} at its level `info`.
    #
    # @api private
    module Log
      module_function

      # @param request [Request]
      # @param route [String] the path, or what stands for unknown ones
      # @param status [Integer]
      # @param cancelled [Boolean] whether the client went away
      # @return [void]
      def write(request, route, status, cancelled:)
        Candle.logger.info do
          elapsed = Process.clock_gettime(Process::CLOCK_MONOTONIC) - request.began
          JSON.generate({ time: Time.now.utc.iso8601(3), request_id: request.id, trace_id: request.trace_id,
                          method: request.verb, path: route, status: status, ms: (elapsed * 1000).round(1),
                          cancelled: cancelled || nil }.compact)
        end
      end
    end
  end
end
