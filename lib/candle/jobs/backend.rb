# frozen_string_literal: true

module Candle
  module Jobs
    # Where jobs are enqueued.
    #
    # @api private
    module Backend
      NAMES = %i[sidekiq active_job inline].freeze

      class << self
        # @return [Symbol, #enqueue]
        def chosen
          @chosen || found
        end

        # @param backend [Symbol, #enqueue, nil]
        def chosen=(backend)
          given = backend.nil? || backend.respond_to?(:enqueue)
          @chosen = given ? backend : Arguments.choice(backend, "backend", NAMES)
        end

        # @param first [Integer, String] a run's id, or a model's name
        # @param count [Integer] how many jobs
        # @param second [String, Object, nil]
        # @param delay [Numeric] seconds
        # @param queue [String]
        # @return [void]
        def enqueue(first, count, second: nil, delay: 0, queue: "default")
          arguments = [first, *second]
          case chosen
          when :sidekiq then sidekiq(arguments, count, delay, queue)
          when :active_job then active_job(arguments, count, delay, queue)
          when :inline then inline(arguments, count, delay)
          else chosen.enqueue(arguments, count: count, delay: delay, queue: queue)
          end
        end

        private

        def found
          return :sidekiq if defined?(::Sidekiq)
          return :active_job if defined?(::ActiveJob::Base)

          raise Error, "there is neither Sidekiq nor Active Job: require one of them, or set Candle::Jobs.backend"
        end

        def sidekiq(arguments, count, delay, queue)
          require "candle/jobs/sidekiq_job"
          jobs = { "class" => SidekiqJob, "args" => Array.new(count) { arguments }, "queue" => queue }
          jobs["at"] = Time.now.to_f + delay if delay.positive?
          ::Sidekiq::Client.push_bulk(jobs)
        end

        def active_job(arguments, count, delay, queue)
          require "candle/jobs/active_job_job"
          jobs = Array.new(count) { ActiveJobJob.new(*arguments) }
          options = { queue: queue, wait: delay.positive? ? delay : nil }.compact
          return jobs.each { |job| job.enqueue(options) } unless ::ActiveJob.respond_to?(:perform_all_later)

          ::ActiveJob.perform_all_later(jobs.each { |job| job.set(options) })
        rescue NotImplementedError
          nil # a backend without delays loses no jobs either: it runs them at once, in this process
        end

        def inline(arguments, count, delay)
          count.times { Inline.new.perform(*arguments) } unless delay.positive?
        end
      end

      # Runs a job at once.
      class Inline
        include Work
      end
    end
  end
end
