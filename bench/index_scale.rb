# frozen_string_literal: true

# 1,000,000 rows of 384 as signed bytes: how long Candle::Index, usearch, faiss and hnswlib take to build a graph, how
# long one query takes, how many of the ten nearest it finds, and what it takes in memory and in its file.
#
#   ruby -Ilib bench/index_scale.rb [rows] [dimension] [queries] [libraries]
#
# Libraries are names with commas between them; without any, all three are compared. Processor time is printed beside
# what a clock shows, since that is what compares on a busy machine.
#
# All have 16 links (32 in the lowest layer), build with an ef of 128, and are searched with 64, 128 and 256. Each runs
# in a process of its own, one after the other, with all cores while it builds and one query at a time. hnswlib has no
# rows of bytes and keeps f32. Rows lie in clusters, as those of texts do.
#
# The libraries are installed on first use, into the user's cache.
require "json"
require "open3"
require "tmpdir"
require_relative "../rakelib/support/build"

PACKAGES = %w[numpy==2.4.6 faiss-cpu==1.15.0 usearch hnswlib].freeze
EFS = [64, 128, 256].freeze

# @return [String] the interpreter that has them
def python
  directory = File.join(Tasks::Build.cache_directory, "bench", "index_scale")
  interpreter = File.join(directory, "bin", "python")
  return interpreter if system(interpreter, "-c", "import faiss, usearch, hnswlib", err: File::NULL)

  system("python3", "-m", "venv", directory, exception: true)
  system(interpreter, "-m", "pip", "install", "--quiet", *PACKAGES, exception: true)
  interpreter
end

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

# Processor time of all threads.
def busy
  Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
end

# Bytes of the process that no file backs, and those that one does.
def resident
  File.read("/proc/self/status").scan(/Rss(?:Anon|File):\s+(\d+) kB/).flatten.map { |size| size.to_i * 1024 }
end

# An index of all rows in a file.
def built(directory, rows, dimension)
  index = Candle::Index.new(dimension: dimension, dtype: :int8)
  File.open(File.join(directory, "rows"), "rb") do |file|
    index.add_all(Enumerator.new { |all| rows.times { |row| all << [row, file.read(4 * dimension)] } })
  end
  index.build_graph(links: 16, ef: 128)
end

def middle(times)
  times.sort[times.size / 2] * 1000
end

# The middle of the times of single queries, and what was found.
def searched(index, queries, effort)
  index.search(queries.first, ef: effort)
  found = []
  times = queries.map do |query|
    start = [now, busy]
    found << index.search(query, top_k: 10, ef: effort).map { |hit| hit[:id] }
    [now - start[0], busy - start[1]]
  end
  { ms: middle(times.map(&:first)), busy_ms: middle(times.map(&:last)), found: found }
end

# Runs in a process of its own: writes our index, and says how long that takes.
def ours_built(directory, rows, dimension)
  began = [now, busy]
  built(directory, rows, dimension).save(File.join(directory, "index"))
  { built: now - began[0], busy: busy - began[1] }
end

# Runs in another one, so that its memory is that of searching.
def ours_searched(directory, dimension)
  path = File.join(directory, "index")
  index = Candle::Index.open(path)
  queries = File.binread(File.join(directory, "queries")).scan(/.{#{4 * dimension}}/mn)
  found = EFS.to_h { |effort| [effort, searched(index, queries, effort)] }
  { name: "Candle::Index", file: File.size(path), memory: resident.sum, searched: found }
end

if %w[built searched].include?(ARGV.first)
  require "candle"
  what, folder, *sizes = ARGV
  puts JSON.generate(what == "built" ? ours_built(folder, *sizes.map(&:to_i)) : ours_searched(folder, sizes.last.to_i))
  exit
end

rows = Integer(ARGV[0] || 1_000_000)
dimension = Integer(ARGV[1] || 384)
queries = Integer(ARGV[2] || 200)
libraries = (ARGV[3] || "usearch,faiss,hnswlib").split(",")

Dir.mktmpdir do |directory|
  peers = File.expand_path("workers/index_scale_peers.py", __dir__)
  run = lambda do |*command|
    output, status = Open3.capture2(*command)
    status.success? ? JSON.parse(output.lines.last, symbolize_names: true) : abort("#{command.join(" ")} failed")
  end
  exact = run.call(python, peers, "exact", directory, rows.to_s, dimension.to_s, queries.to_s)[:found]
  ours = %w[built searched].map do |part|
    run.call("ruby", "-Ilib", __FILE__, part, directory, rows.to_s, dimension.to_s)
  end
  results = [ours.reduce(:merge)]
  libraries.each do |name|
    results << run.call(python, peers, name, directory, rows.to_s, dimension.to_s, queries.to_s)
  end
  puts "#{rows} clustered rows of #{dimension}, #{queries} queries"
  results.each do |result|
    puts format("%-14<name>s built in %5.0<built>f s (processor %5.0<busy>f s)", result)
    puts format("  file %6.0<file>f MB   memory %6.0<memory>f MB",
                file: result[:file] / 1e6, memory: result[:memory] / 1e6)
    result[:searched].each do |ef, one|
      share = one[:found].zip(exact).sum { |found, wanted| (found & wanted).size } / exact.sum(&:size).to_f
      puts format("  ef %-4<ef>s recall@10 %.4<share>f   %.3<ms>f ms (processor %.3<busy>f ms)",
                  ef: ef, share: share, ms: one[:ms], busy: one[:busy_ms])
    end
  end
end
