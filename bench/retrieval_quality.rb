# frozen_string_literal: true

# nDCG@10 of BM25, of vectors, of both, and of both reranked, on a real collection: the 50 news texts of Lee, Pincombe
# and Welsh (2005) with people's judgements of how alike each two are, which lie in gensim's wheel (PyPI, pinned below).
#
#   ruby -Ilib bench/retrieval_quality.rb
#
# The first sentence of each text is a query; all other texts are searched. How relevant one is is the judgement, from
# 0 to 1, less what unrelated texts get (0.25 and below count nothing). 50 queries are few: differences below 0.03 say
# little.
require "candle"
require "fileutils"
require "tmpdir"
require_relative "../rakelib/support/build"
require_relative "../rakelib/support/models"

WHEEL = "gensim-4.4.0-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl"
FILES = %w[lee.cor similarities0-1.txt].freeze
EMBEDDER = "sentence-transformers/all-MiniLM-L6-v2"
RERANKER = "cross-encoder/ms-marco-MiniLM-L-12-v2"
UNRELATED = 0.25
DEPTH = 10

# @return [String] the folder of the collection, which is fetched on first use
def collection
  folder = File.join(Tasks::Build.cache_directory, "bench", "lee")
  return folder if FILES.all? { |name| File.file?(File.join(folder, name)) }

  FileUtils.mkdir_p(folder)
  Dir.mktmpdir do |scratch|
    system("python3", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
           "--python-version", "3.11", "--platform", "manylinux_2_28_x86_64", "gensim==4.4.0", "--dest", scratch,
           exception: true)
    names = FILES.map { |name| "gensim/test/test_data/#{name}" }
    system("unzip", "-q", "-o", "-j", File.join(scratch, WHEEL), *names, "-d", folder, exception: true)
  end
  folder
end

def discounted(gains)
  gains.first(DEPTH).each_with_index.sum { |gain, rank| gain / Math.log2(rank + 2) }
end

# @return [Float] of the found ids, whose gains are judged
def ndcg(found, gains)
  best = discounted(gains.values.sort.reverse)
  best.zero? ? nil : discounted(found.map { |id| gains.fetch(id) }) / best
end

folder = collection
texts = File.read(File.join(folder, "lee.cor"), encoding: "Windows-1252:UTF-8").split("\n").reject(&:empty?)
judged = File.readlines(File.join(folder, "similarities0-1.txt")).map { |line| line.split.map(&:to_f) }
abort "the collection is another" unless judged.size == texts.size && judged.all? { |row| row.size == texts.size }

model = Candle::EmbeddingModel.from_pretrained(Tasks::Models.path(EMBEDDER), device: "cpu")
reranker = Candle::Reranker.from_pretrained(Tasks::Models.path(RERANKER), device: "cpu")
index = Candle::Index.new(model: model)
index.add_all(texts.each_with_index.map { |text, id| [id, text] })

modes = { "BM25" => { mode: :bm25 }, "dense" => { mode: :dense }, "hybrid" => { mode: :hybrid },
          "hybrid + rerank" => { mode: :hybrid, rerank: reranker } }
puts "nDCG@#{DEPTH}, #{texts.size} queries, #{EMBEDDER}, #{RERANKER}"
modes.each do |name, options|
  began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  scores = texts.each_with_index.filter_map do |text, id|
    others = texts.each_index.reject { |other| other == id }
    gains = others.to_h { |other| [other, [judged[id][other] - UNRELATED, 0.0].max] }
    found = index.search(text[/\A.*?[.!?](?=\s|\z)/m] || text, top_k: DEPTH, among: others, **options)
    ndcg(found.map { |hit| hit[:id] }, gains)
  end
  spent = Process.clock_gettime(Process::CLOCK_MONOTONIC) - began
  facts = { name: name, mean: scores.sum / scores.size, ms: 1000 * spent / texts.size }
  puts format("%-16<name>s %<mean>.3f   %<ms>.1f ms a query", facts)
end
