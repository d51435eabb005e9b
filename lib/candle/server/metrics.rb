# frozen_string_literal: true

module Candle
  class Server
    # Counters, gauges and histograms, written in Prometheus' text format.
    #
    # @api private
    class Metrics
      # What is counted: kind, help, and the upper bounds of a histogram.
      FAMILIES = {
        "candle_requests_total" => [:counter, "Requests answered, by route and status"],
        "candle_request_seconds" => [:histogram, "Time from a request to the end of its answer",
                                     [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300]],
        "candle_rejected_total" => [:counter, "Requests answered by 429"],
        "candle_cancelled_total" => [:counter, "Requests whose client went away"],
        "candle_batch_size" => [:histogram, "Texts of a request that takes several",
                                [1, 2, 4, 8, 16, 32, 64, 128, 256]],
        "candle_batch_lines_total" => [:counter, "Requests of batches that were computed, by outcome"],
        "candle_tokens_total" => [:counter, "Tokens read (in) and generated (out)"],
        "candle_first_token_seconds" => [:histogram, "Time from the start of a generation to its first token",
                                         [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]],
        "candle_between_tokens_seconds" => [:histogram, "Time from one token to the next",
                                            [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1]]
      }.freeze

      # The content type of {#render}.
      CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

      Histogram = Struct.new(:buckets, :total, :observations)
      private_constant :FAMILIES, :Histogram

      def initialize
        @mutex = Mutex.new
        @values = Hash.new { |families, name| families[name] = {} }
        @started = Time.now
      end

      # @param name [String] a counter
      # @param labels [Hash]
      # @return [void]
      def add(name, amount = 1, **labels)
        @mutex.synchronize { @values[name][labels] = @values[name].fetch(labels, 0) + amount }
      end

      # @param name [String] a histogram
      # @param value [Numeric]
      # @param labels [Hash]
      # @return [void]
      def observe(name, value, **labels)
        bounds = FAMILIES.fetch(name).last
        @mutex.synchronize do
          histogram = @values[name][labels] ||= Histogram.new(Array.new(bounds.size, 0), 0.0, 0)
          index = bounds.index { |bound| value <= bound }
          histogram.buckets[index] += 1 if index
          histogram.total += value
          histogram.observations += 1
        end
      end

      # @param gauges [Hash{String => Array}] further families: help, and values by labels
      # @param histograms [Hash{String => Array}] likewise, each value with `count`, `sum` and cumulative `buckets`
      # @return [String]
      def render(gauges = {}, histograms = {})
        counted = @mutex.synchronize { FAMILIES.keys.flat_map { |name| family(name) } }
        shown = process.merge(gauges).flat_map { |name, (help, values)| plain(name, "gauge", help, values) }
        spread = histograms.flat_map do |name, (help, values)|
          head(name, "histogram", help) + values.flat_map { |labels, value| distribution(name, labels, value) }
        end
        "#{(counted + shown + spread).join("\n")}\n"
      end

      private

      def family(name)
        kind, help, bounds = FAMILIES.fetch(name)
        return plain(name, kind, help, @values[name]) unless kind == :histogram

        head(name, kind, help) + @values[name].flat_map { |labels, value| histogram(name, labels, value, bounds) }
      end

      def histogram(name, labels, histogram, bounds)
        total = 0
        buckets = bounds.zip(histogram.buckets).map do |bound, count|
          line("#{name}_bucket", labels.merge(le: bound), total += count)
        end
        [*buckets, line("#{name}_bucket", labels.merge(le: "+Inf"), histogram.observations),
         line("#{name}_sum", labels, histogram.total), line("#{name}_count", labels, histogram.observations)]
      end

      def distribution(name, labels, value)
        buckets = value[:buckets].map do |bound, count|
          line("#{name}_bucket", labels.merge(le: bound.infinite? ? "+Inf" : bound), count)
        end
        [*buckets, line("#{name}_sum", labels, value[:sum]), line("#{name}_count", labels, value[:count])]
      end

      def plain(name, kind, help, values)
        head(name, kind, help) + values.map { |labels, value| line(name, labels, value) }
      end

      def head(name, kind, help)
        ["# HELP #{name} #{help}", "# TYPE #{name} #{kind}"]
      end

      def line(name, labels, value)
        inside = labels.map do |key, text|
          "#{key}=\"#{text.to_s.gsub(/[\\"\n]/, "\\" => "\\\\", '"' => '\\"', "\n" => '\\n')}\""
        end
        "#{name}#{"{#{inside.join(",")}}" if inside.any?} #{value}"
      end

      def process
        found = {
          "process_start_time_seconds" => ["When the process began to serve", { {} => @started.to_f }],
          "process_cpu_seconds_total" => ["Time on the CPU",
                                          { {} => Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) }],
          "process_threads" => ["Threads of Ruby", { {} => Thread.list.size }]
        }
        memory = resident_bytes
        found["process_resident_memory_bytes"] = ["Memory in use", { {} => memory }] if memory
        found
      end

      def resident_bytes
        File.read("/proc/self/status")[/^VmRSS:\s+(\d+) kB/, 1]&.to_i&.*(1024)
      rescue SystemCallError
        nil
      end
    end
  end
end
