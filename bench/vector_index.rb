# frozen_string_literal: true

# Candle::Index beside numpy's matrix product and faiss' flat index: the time of one query among many rows, and whether
# the same rows are found.
#
#   ruby -Ilib bench/vector_index.rb [rows] [dimension] [queries]
#
# numpy and faiss are installed on first use, into the user's cache.
require "candle"
require "fileutils"
require "json"
require "open3"
require "tmpdir"
require_relative "../rakelib/support/build"

rows = Integer(ARGV[0] || 1_000_000)
dimension = Integer(ARGV[1] || 384)
queries = Integer(ARGV[2] || 30)

PACKAGES = %w[numpy==2.4.6 faiss-cpu==1.15.0].freeze

# @return [String] the interpreter that has them
def python
  directory = File.join(Tasks::Build.cache_directory, "bench", "vector_index")
  interpreter = File.join(directory, "bin", "python")
  return interpreter if system(interpreter, "-c", "import faiss", err: File::NULL)

  system("python3", "-m", "venv", directory, exception: true)
  system(interpreter, "-m", "pip", "install", "--quiet", *PACKAGES, exception: true)
  interpreter
end

def middle_of(times)
  times.sort[times.size / 2]
end

def time_ours(index, queries)
  index.search(queries.first)
  found = []
  times = queries.map do |query|
    began = Process.clock_gettime(Process::CLOCK_MONOTONIC, :float_millisecond)
    found << index.search(query, top_k: 10).map { |hit| hit[:id] }
    Process.clock_gettime(Process::CLOCK_MONOTONIC, :float_millisecond) - began
  end
  { "ms" => middle_of(times), "found" => found }
end

def recall(found, wanted)
  found.zip(wanted).sum { |one, other| (one & other).size } / wanted.sum(&:size).to_f
end

Dir.mktmpdir do |directory|
  peers = File.expand_path("workers/vector_index_peers.py", __dir__)
  output, status = Open3.capture2(python, peers, directory, rows.to_s, dimension.to_s, queries.to_s)
  abort "the peers failed" unless status.success?

  results = JSON.parse(output)
  wanted = results.fetch("numpy").fetch("found")
  asked = File.binread(File.join(directory, "queries")).scan(/.{#{4 * dimension}}/mn)
  Candle::Index::DTYPES.each do |dtype|
    index = Candle::Index.new(dimension: dimension, dtype: dtype)
    File.open(File.join(directory, "rows"), "rb") do |file|
      index.add_all(Enumerator.new { |all| rows.times { |row| all << [row, file.read(4 * dimension)] } })
    end
    path = index.save(File.join(directory, dtype.to_s))
    results["Candle::Index #{dtype}"] = time_ours(Candle::Index.open(path), asked)
  end

  puts "one query among #{rows} rows of #{dimension}, the middle of #{queries}"
  results.each do |name, result|
    share = 100 * recall(result["found"], wanted)
    puts format("%-24<name>s %9.2<ms>f ms   %5.1<share>f %% of numpy's ten", name: name, ms: result["ms"], share: share)
  end
end
