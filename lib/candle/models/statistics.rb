# frozen_string_literal: true

module Candle
  # What models count of their calls.
  module Statistics
    # What the model has done since it was loaded, and does now, in this process. Reading it takes no lock, holds nobody
    # up, and costs some microseconds.
    #
    # Models that read texts compute calls of several threads together: `running` counts calls whose batch is computed,
    # `waiting` those whose batch comes next. `batches` and `tokens_in` only grow. The others are histograms:
    # `batch_size` (texts), `batch_tokens`, `queue_ms` (how long calls waited) and `forward_ms` (how long batches took),
    # each with `count`, `sum`, estimates of `p50`, `p90` and `p99`, and `buckets`: how many values were at most as
    # large as each bound.
    #
    # @example
    #   model = Candle::EmbeddingModel.from_pretrained("spec/fixtures/tiny/bert")
    #   model.embed("the quick brown fox")
    #   model.stats.slice(:running, :waiting, :batches) # => {:running=>0, :waiting=>0, :batches=>1}
    #   model.stats[:batch_size][:buckets][1.0] # => 1
    #
    # @return [Hash{Symbol => Integer, Hash}]
    def stats
      _stats
    end
  end
end
