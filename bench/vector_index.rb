# frozen_string_literal: true

# Candle::Index beside numpy's matrix product and faiss' flat and HNSW indexes: the time of one query among many rows,
# and whether the same rows are found.
#
#   ruby -Ilib bench/vector_index.rb [rows] [dimension] [queries]
#
# Exact search is timed on rows without any order, approximate search on rows in clusters, as those of texts are: where
# all are equally far from each other there is nothing for a graph to follow. Graphs have 16 links (32 in the lowest
# layer), are built with an ef of 128, and searched with one of 64.
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

# The index, and the seconds that its graph took.
def drawn(index)
  began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  index.build_graph(links: 16, ef: 128)
  [index, Process.clock_gettime(Process::CLOCK_MONOTONIC) - began]
end

def recall(found, wanted)
  found.zip(wanted).sum { |one, other| (one & other).size } / wanted.sum(&:size).to_f
end

# Rows that the peers wrote, as an index in a file.
def filled(directory, dtype, rows, dimension)
  index = Candle::Index.new(dimension: dimension, dtype: dtype)
  File.open(File.join(directory, "rows"), "rb") do |file|
    index.add_all(Enumerator.new { |all| rows.times { |row| all << [row, file.read(4 * dimension)] } })
  end
  index
end

def mapped(directory, index)
  Candle::Index.open(index.save(File.join(directory, "index")))
end

def show(title, results)
  wanted = results.fetch("numpy").fetch("found")
  puts title
  results.each do |name, result|
    facts = { name: name, ms: result["ms"], share: 100 * recall(result["found"], wanted), drawn: result["drawn"] }
    line = "%-30<name>s %9.2<ms>f ms   %5.1<share>f %% of numpy's ten"
    line += "   drawn in %.0<drawn>f s" if facts[:drawn]
    puts format(line, facts)
  end
end

%w[random clustered].each do |kind|
  Dir.mktmpdir do |directory|
    peers = File.expand_path("workers/vector_index_peers.py", __dir__)
    output, status = Open3.capture2(python, peers, directory, rows.to_s, dimension.to_s, queries.to_s, kind)
    abort "the peers failed" unless status.success?

    results = JSON.parse(output)
    asked = File.binread(File.join(directory, "queries")).scan(/.{#{4 * dimension}}/mn)
    Candle::Index::DTYPES.each do |dtype|
      index = filled(directory, dtype, rows, dimension)
      if kind == "random"
        results["Candle::Index #{dtype}"] = time_ours(mapped(directory, index), asked)
      else
        index, seconds = drawn(index)
        results["Candle::Index #{dtype}, graph"] = time_ours(mapped(directory, index), asked).merge("drawn" => seconds)
      end
    end
    show("one query among #{rows} #{kind} rows of #{dimension}, the middle of #{queries}", results)
  end
end
