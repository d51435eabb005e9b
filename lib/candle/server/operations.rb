# frozen_string_literal: true

module Candle
  class Server
    # What operators ask: whether the server lives, whether it can work, and how much it does; and the page.
    #
    # @api private
    class Operations < API
      # The page, read once.
      PAGE = File.read(File.join(__dir__, "page.html"), encoding: "UTF-8").freeze
      # Nothing but the page's own script and style, and requests to where it came from.
      POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; " \
               "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
      private_constant :PAGE, :POLICY

      # @param request [Request]
      # @return [Array] an answer of Rack: the page, or the way to it where its links would not work
      def page(request)
        mount = request.env["SCRIPT_NAME"].to_s
        return [302, { "location" => "#{mount}/" }, []] if request.path.empty? && !mount.empty?

        [200, { "content-type" => "text/html; charset=utf-8", "content-security-policy" => POLICY,
                "x-content-type-options" => "nosniff", "referrer-policy" => "no-referrer" }, [PAGE]]
      end

      # @param _request [Request]
      # @return [Array] an answer of Rack: 200 while the process lives
      def health(_request)
        json({ status: "ok" })
      end

      # @param _request [Request]
      # @return [Array] an answer of Rack: 200 when every model is loaded and has computed something
      def ready(_request)
        ready = models.loaded? && !services.gate.closed?
        json({ status: ready ? "ready" : "not_ready", models: models.to_h { |entry| [entry.name, entry.loaded?] } },
             status: ready ? 200 : 503)
      end

      # @param _request [Request]
      # @return [Array] an answer of Rack: Prometheus' text format
      def metrics(_request)
        numbers, histograms = statistics
        [200, { "content-type" => Metrics::CONTENT_TYPE }, [services.metrics.render(gauges.merge(numbers), histograms)]]
      end

      private

      def gauges
        { "candle_running" => ["Requests that compute", { {} => services.gate.running }],
          "candle_waiting" => ["Requests that wait", { {} => services.gate.waiting }],
          "candle_models_loaded" => ["Models that are loaded", { {} => models.count(&:loaded?) }] }
      end

      # What the models count themselves, where they do: numbers and histograms, by name and by model.
      def statistics
        counting = models.select { |entry| entry.loaded? && entry.model.respond_to?(:stats) }
        values = counting.flat_map { |entry| entry.model.stats.map { |name, value| [name, entry.name, value] } }
        numbers = values.select { |_, _, value| value.is_a?(Numeric) }
        [families(numbers), families(values.select { |_, _, value| value.is_a?(Hash) && value.key?(:buckets) })]
      end

      def families(values)
        values.each_with_object({}) do |(name, model, value), found|
          found["candle_model_#{name}"] ||= ["What the model says of itself", {}]
          found["candle_model_#{name}"].last[{ model: model }] = value
        end
      end
    end
  end
end
