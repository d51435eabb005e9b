# frozen_string_literal: true

# A process of Sidekiq's, for the specs of jobs and for `rake scale`. Prints "ready" when it takes jobs.
require "sidekiq"
require "sidekiq/cli"
require "active_record"
require "candle/jobs"

$stdout.sync = true
ActiveRecord::Base.establish_connection(adapter: "postgresql", host: ENV.fetch("CANDLE_POSTGRES"), username: "candle",
                                        database: "postgres", min_messages: "warning", pool: 20)

# What the workers and those who enqueue for them agree on.
class Article < ActiveRecord::Base
  has_embedding :content, model: ENV.fetch("SPEC_MODEL"), dimensions: ENV.fetch("SPEC_DIMENSIONS").to_i,
                          dtype: ENV["SPEC_DTYPE"]&.to_sym, bits: ENV["SPEC_BITS"] && true, update: :manual
end

# Makes slices long enough to be killed in the middle of.
module Slow
  def embed(...)
    sleep ENV.fetch("SPEC_DELAY").to_f
    super
  end
end
Candle::EmbeddingModel.prepend(Slow) if ENV["SPEC_DELAY"]

Candle::Jobs.preload(ENV.fetch("SPEC_MODEL"), **{ dtype: ENV["SPEC_DTYPE"]&.to_sym }.compact)
Sidekiq.configure_server { |config| config.on(:startup) { puts "ready" } }
cli = Sidekiq::CLI.instance
cli.parse(["--concurrency", ENV.fetch("SPEC_THREADS", "4"), "--require", __FILE__, "--timeout", "5"])
Sidekiq.options[:average_scheduled_poll_interval] = 1
cli.run
