# frozen_string_literal: true

desc "Time red-candle beside its peers: rake bench[embeddings,llm], CASES=..., QUICK=1, THREADS=..."
task :bench, [:case] => :compile do |_, arguments|
  require_relative "../bench/harness/main"
  wanted = arguments.to_a + ENV.fetch("CASES", "").split(/[\s,]+/)
  threads = Integer(ENV.fetch("THREADS", Etc.nprocessors))
  alike = Bench::Main.run(wanted: wanted, quick: ENV["QUICK"] == "1", threads: threads)
  abort "Some results differ or are missing: see the table." unless alike
rescue Bench::Suite::UnknownCase, Bench::Machine::DebugBuild => e
  abort e.message
end

namespace :bench do
  desc "Time this build beside that of another checkout: rake bench:against CHECKOUT=../before CASES=..."
  task against: :compile do
    require_relative "../bench/harness/against"
    alike = Bench::Against.run(wanted: ENV.fetch("CASES", "").split(/[\s,]+/), checkout: ENV.fetch("CHECKOUT"),
                               threads: Integer(ENV.fetch("THREADS", Etc.nprocessors)))
    abort "The two builds differ, or a case failed: see the table." unless alike
  end

  desc "Embeddings with all libraries limited to one instruction set: rake bench:levels[avx2], THREADS=..."
  task :levels, [:level] => :compile do |_, arguments|
    require_relative "../bench/harness/levels"
    Bench::Peers.prepare
    alike = Bench::Levels.run(arguments.fetch(:level), threads: Integer(ENV.fetch("THREADS", Etc.nprocessors)))
    abort "Some results differ or are missing: see the table." unless alike
  end

  desc "A model of 1.5 billion weights (fetches 1.1 GB): rake bench:larger LEVELS=avx512,avx2 THREADS=..."
  task larger: :compile do
    require_relative "../bench/harness/larger"
    Bench::Peers.prepare
    levels = ENV.fetch("LEVELS") { Bench::Machine.level }.split(",")
    alike = Bench::Larger.run(levels, threads: Integer(ENV.fetch("THREADS", Etc.nprocessors)))
    abort "A case failed: see the table." unless alike
  end

  desc "Install and build the libraries that rake bench compares with, outside the repository"
  task :setup do
    require_relative "../bench/harness/candle_transformers"
    require_relative "../bench/harness/mtmd"
    puts Bench::Peers.prepare, Bench::Mtmd.prepare, Bench::CandleTransformers.prepare
  end

  desc "Put the newest whole run, or FILE=, into measurements.md of docs/ and its pictures"
  task :plot do
    require_relative "../bench/harness/limits_document"
    puts Bench::Document.publish(*[ENV["FILE"]].compact), Bench::LimitsDocument.publish
  end

  desc "Measure what this machine reads and multiplies at most, and draw where the published cases stand: THREADS=..."
  task :roofline do
    require_relative "../bench/harness/limits_document"
    threads = Integer(ENV.fetch("THREADS") { Bench::Results.read(Bench::Results::PUBLISHED).fetch("threads") })
    puts Bench::Limits.update(threads: threads), Bench::LimitsDocument.publish
  end

  desc "Show where our time goes in a case, by perf: rake bench:profile[q4_1_decode]"
  task :profile, [:case] => :compile do |_, arguments|
    require_relative "../bench/harness/main"
    require_relative "../bench/harness/profile"
    Dir.mktmpdir("bench-") do |directory|
      one = Bench::Suite.new(directory).select([arguments.fetch(:case)]).first
      puts Bench::Profile.new(one, threads: Integer(ENV.fetch("THREADS", Etc.nprocessors))).text
    end
  end

  desc "Measure memory while 100,000 texts go through embed_each"
  task memory: :compile do
    ruby "-Ilib", "bench/embed_each_memory.rb"
  end

  desc "Time Candle::Index beside numpy and faiss' flat and HNSW indexes"
  task index: :compile do
    ruby "-Ilib", "bench/vector_index.rb"
  end

  desc "Build and search 1,000,000 rows of 384 bytes beside usearch, faiss and hnswlib"
  task index_scale: :compile do
    ruby "-Ilib", "bench/index_scale.rb"
  end

  desc "nDCG@10 of BM25, vectors, both, and both reranked on a real collection"
  task retrieval: :compile do
    ruby "-Ilib", "bench/retrieval_quality.rb"
  end

  desc "Time GLiNER, NER, question answering and LLM extraction beside Python: GLINER=, NER=, LLM=, PYTHON=..."
  task extraction: :compile do
    ruby "-Ilib", "bench/extraction.rb"
  end

  desc "Compare Candle::Transcriber with faster-whisper and whisper.cpp on whisper-base"
  task speech: :compile do
    ruby "-Ilib", "bench/speech.rb"
  end

  desc "Compare classifiers, detectors and a segmenter with onnxruntime: PYTHON=..."
  task images: :compile do
    ruby "-Ilib", "bench/images.rb"
  end

  desc "Compare Candle::VLM with llama.cpp and mtmd on the same GGUF files"
  task vlm: :compile do
    ruby "-Ilib", "bench/vlm.rb"
  end

  desc "Compare times of words with those of openai-whisper: PYTHON=..."
  task speech_words: :compile do
    ruby "-Ilib", "bench/speech_words.rb"
  end

  desc "Time the encoding of texts beside the tokenizers crate, in one process and on one thread: MODELS="
  task :tokenizers do
    require_relative "support/tokenizers"
    require_relative "../bench/harness/machine"
    models = ENV["MODELS"]&.split(",") || Tasks::Tokenizers::MODELS
    puts "#{Bench::Machine.processor}, level #{Bench::Machine.level}"
    Tasks::Tokenizers.run("time", *Tasks::Tokenizers.paths(models))
  end

  desc "Time our kernels beside candle-nn's, in one release build and run"
  task :kernels do
    sh "cargo", "run", "--release", "-p", "red-candle-engine", "--example", "bench_kernels"
  end
end
