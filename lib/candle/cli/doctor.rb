# frozen_string_literal: true

module Candle
  class CLI
    # `red-candle doctor`.
    #
    # @api private
    class Doctor < Verb
      # Gems that some commands need, and which.
      OPTIONAL = { "puma" => "serve and worker", "rack" => "config.ru and Rails" }.freeze
      private_constant :OPTIONAL

      # @return [Boolean] whether everything works
      def call
        checks = { kernels: kernels, cache: cache }
        report = { version: VERSION, ruby: RUBY_VERSION, platform: RUBY_PLATFORM, build: BuildInfo.summary,
                   checks: checks, gems: gems }
        show(report) { write(report) }
        checks.values.all? { |check| check[:ok] }
      end

      private

      # Each kernel of each device computes what its reference computes.
      def kernels
        names = Device.available_devices
        results = names.to_h { |name| [name, self_test(name)] }
        failed = results.flat_map { |name, result| result.fetch(:failed).map { |kernel| "#{name}: #{kernel}" } }
        { ok: failed.empty?, tested: names, cases: results.values.sum { |result| result.fetch(:cases) }, failed: failed,
          fix: failed.any? ? "update the driver, or use --device cpu" : nil }.compact
      end

      def self_test(name)
        found = SelfTest.kernels(name)
        { cases: found.sum { |_, cases, _| cases },
          failed: found.flat_map { |kernel, _, failed| failed.map { |failure| "#{kernel} #{failure}" } } }
      rescue Error => e
        { cases: 0, failed: [e.message] }
      end

      def cache
        directory = HubCache.directory
        existing = directory
        existing = File.dirname(existing) until File.exist?(existing)
        ok = File.writable?(existing)
        { ok: ok, directory: directory, fix: ok ? nil : "make it writable, or set HF_HUB_CACHE" }.compact
      end

      def gems
        OPTIONAL.to_h do |name, use|
          found = Gem::Specification.find_all_by_name(name).max_by(&:version)
          [name, found ? { version: found.version.to_s } : { missing: "needed for #{use}: gem install #{name}" }]
        end
      end

      def write(report)
        build = report[:build]
        Terminal.table([["red-candle", report[:version]], ["Ruby", "#{report[:ruby]} on #{report[:platform]}"],
                        ["build", "#{build[:build]}, #{build[:threads]} threads"],
                        ["devices", build[:available_devices].join(", ")],
                        *([["CUDA", build[:cuda_problem]]] if build[:cuda_problem]),
                        *report[:checks].map { |name, check| [name, check[:ok] ? "ok" : "FAILED: #{check[:fix]}"] },
                        *report[:gems].map { |name, gem| [name, gem[:version] || gem[:missing]] }])
      end
    end
  end
end
