# frozen_string_literal: true

# Memory while many short texts go through embed_each: it must stay flat.
#
#   ruby -Ilib bench/embed_each_memory.rb [model] [texts]
#
# The model is a directory or an id, by default a small random one; texts are 100,000 unless told.
require "candle"

# Pages in RAM, as Linux counts them.
def resident_megabytes
  File.read("/proc/self/statm").split[1].to_i * 4096 / 1e6
rescue Errno::ENOENT
  `ps -o rss= -p #{Process.pid}`.to_i / 1e3
end

source = ARGV[0] || File.expand_path("../spec/fixtures/tiny/bert-sentence", __dir__)
count = Integer(ARGV[1] || 100_000)
limit = 50

model = Candle::EmbeddingModel.from_pretrained(source, device: "cpu")
texts = Enumerator.new { |yielder| count.times { |index| yielder << "the quick brown fox number #{index}" } }
warm_up = [count / 5, 10_000].min
start = most = nil
done = 0
started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
model.embed_each(texts) do
  done += 1
  next unless (done % 1000).zero? && done >= warm_up

  start ||= resident_megabytes
  most = [most || start, resident_megabytes].max
end
seconds = Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
puts format("%<done>d texts in %<seconds>.1f s (%<rate>d per second)", done:, seconds:, rate: done / seconds),
     format("%<start>.1f MB after %<warm_up>d texts, at most %<most>.1f MB: grown by %<growth>.1f MB",
            start:, warm_up:, most:, growth: most - start)
abort "grown by more than #{limit} MB" if most - start > limit
